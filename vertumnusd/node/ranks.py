"""Supervision of the rank processes: start, feed, listen, kill, restart.

The ranks of one *lattice root* (an aligned set of the largest degree) share process groups, so they
live and die together: when one ends, the others are killed, and all start again as a new
*generation*, whose name keeps its groups apart from the old ones in the store. A decode rank is a
root of its own.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import msgspec
import structlog
import trio

from vertumnusd.config import Config
from vertumnusd.control.owed import Owed
from vertumnusd.messages import (
    FromHelper,
    FromRank,
    Loaded,
    LoadModel,
    LoadProgress,
    ModelInfo,
    Pace,
    RankDown,
    RankFault,
    RankStart,
    RankUp,
    Ready,
    ToRank,
)
from vertumnusd.node.child import Child
from vertumnusd.node.memory import MemoryFiles
from vertumnusd.node.rank_start import rank_start

RESTART_WINDOW_S = 600.0

log = structlog.get_logger("vertumnusd.ranks")


class RankStartError(Exception):
    """Ranks could not be brought into service; the message has the rank's own reason."""


@dataclass(slots=True)
class _Root:
    """Ranks that live and die together."""

    ranks: range
    kind: str
    generation: int = 0
    ready: set[int] = field(default_factory=set)
    children: dict[int, Child] = field(default_factory=dict)
    reason: str = ""
    serving: trio.Event = field(default_factory=trio.Event)
    restarts: deque[float] = field(default_factory=deque)


@dataclass(frozen=True, slots=True)
class RankEvents:
    """Where the supervisor reports to; all of them return at once."""

    up: Callable[[RankUp], None]
    down: Callable[[RankDown], None]
    message: Callable[[FromRank], None]
    progress: Callable[[str], None]  # one line about how far loading is


class RankHost:
    """All rank processes of this host and the helper that holds their weights and store."""

    def __init__(
        self,
        config: Config,
        model: ModelInfo,
        path: str,
        events: RankEvents,
        pace: Pace | None = None,
    ) -> None:
        """``pace``: the ranks are paced ones, which need neither weights nor a store."""
        self._config = config
        self._model = model
        self._path = path
        self._pace = pace
        self._events = events
        self._files = MemoryFiles.create(config, model)
        self._loaded: Loaded | None = None
        self._loaded_event = trio.Event()
        self.all_ready = trio.Event()
        self._roots = self._make_roots()
        self._by_rank = {rank: root for root in self._roots for rank in root.ranks}
        self._owed = Owed(config.rank.progress_timeout_s)

    def _make_roots(self) -> list[_Root]:
        cluster = self._config.cluster
        size = max(cluster.cp_degrees)
        roots = [
            _Root(range(first, min(first + size, cluster.ranks)), "prefill")
            for first in range(0, cluster.ranks, size)
        ]
        first_decode = cluster.ranks
        for rank in range(first_decode, first_decode + cluster.decode_ranks):
            roots.append(_Root(range(rank, rank + 1), "decode"))
        return roots

    # --- for the hub

    def send(self, rank: int, message: ToRank) -> None:
        """A message to a rank that is gone goes nowhere; ``down`` told or will tell."""
        child = self._by_rank[rank].children.get(rank)
        if child is not None:
            self._owed.sent(trio.current_time(), rank, message)
            child.send(message)

    def tick(self) -> None:
        """Kill the ranks that owe an answer for too long."""
        for rank, message in self._owed.late(trio.current_time()).items():
            self.kill(rank, f"rank {rank} does not answer {message}")

    def kill(self, rank: int, reason: str) -> None:
        root = self._by_rank[rank]
        child = root.children.get(rank)
        if child is not None:
            root.reason = root.reason or reason
            child.kill()

    # --- tasks

    async def run(self) -> None:
        """Keep everything alive until cancelled. Raises :class:`RankStartError` at start only."""
        try:
            async with trio.open_nursery() as nursery:
                if self._pace is None:
                    nursery.start_soon(self._keep_helper)
                else:
                    self._on_loaded(Loaded(self._model, [], 0, 0))
                for root in self._roots:
                    nursery.start_soon(self._keep_root, root)
        finally:
            self._files.close()

    async def _keep_helper(self) -> None:
        decode = msgspec.msgpack.Decoder(FromHelper).decode
        fault = ""

        def handle(frame: bytes) -> None:
            nonlocal fault
            match message := decode(frame):
                case LoadProgress():
                    percent = 100 * message.loaded_bytes // max(1, message.total_bytes)
                    self._events.progress(f"loading weights: {percent} %")
                case Loaded():
                    self._on_loaded(message)
                case RankFault():
                    fault = message.reason

        with self._child("vertumnusd.rank.host_helper", [self._files.weights]) as helper:
            load = LoadModel(
                self._path,
                self._model.name,
                self._model.dtype,
                self._files.weights,
                self._config.node.rank_host,
            )
            helper.send(load)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(helper.write)
                await helper.read(handle)
                status = await helper.wait()
                nursery.cancel_scope.cancel()
        raise RankStartError(fault or f"the host helper ended with status {status}")

    def _on_loaded(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._events.progress("starting ranks")
        self._loaded_event.set()

    async def _keep_root(self, root: _Root) -> None:
        while True:
            await self._run_generation(root)
            self._forget(root)
            now = trio.current_time()
            root.restarts.append(now)
            while root.restarts and now - root.restarts[0] > RESTART_WINDOW_S:
                root.restarts.popleft()
            if len(root.restarts) > self._config.rank.max_restarts:
                log.error(
                    "ranks ended too often, leaving them out of service",
                    ranks=list(root.ranks),
                    restarts=len(root.restarts),
                )
                return

    async def _run_generation(self, root: _Root) -> None:
        """Start the root's ranks, serve until one of them ends, end the others."""
        root.generation += 1
        root.reason = ""
        root.serving = trio.Event()
        with self._children(root):
            await self._loaded_event.wait()
            try:
                async with trio.open_nursery() as nursery:
                    for rank, child in root.children.items():
                        child.send(self._start(root, rank))
                        nursery.start_soon(child.write)
                        nursery.start_soon(child.read, self._reader(root, rank))
                        nursery.start_soon(self._watch, root, rank, child, nursery.cancel_scope)
                    await self._require_start(root)
            finally:
                await self._end_together(root)

    async def _end_together(self, root: _Root) -> None:
        """Unmapping gigabytes takes a process a while: nobody else should wait for that."""
        for child in root.children.values():
            child.kill()
        with trio.CancelScope(shield=True):
            for child in root.children.values():
                await child.wait()

    async def _require_start(self, root: _Root) -> None:
        timeout_s = self._config.rank.start_timeout_s
        with trio.move_on_after(timeout_s):
            await root.serving.wait()
        if not root.serving.is_set():
            for rank in root.ranks:
                self.kill(rank, f"not ready within {timeout_s:g} s")

    async def _watch(
        self, root: _Root, rank: int, child: Child, generation: trio.CancelScope
    ) -> None:
        status = await child.wait()
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        root.reason = root.reason or f"rank {rank} ended ({how})"
        log.warning("rank ended", rank=rank, kind=root.kind, how=how, reason=root.reason)
        generation.cancel()

    def _forget(self, root: _Root) -> None:
        """Tell the hub that the ranks are gone; before anything ever served, give up."""
        root.ready.clear()
        for rank in root.ranks:
            self._owed.gone(rank)
        first, *others = root.ranks
        self._events.down(RankDown(first, root.kind, root.reason, tuple(others)))
        if not self.all_ready.is_set():
            raise RankStartError(root.reason)

    def _reader(self, root: _Root, rank: int) -> Callable[[bytes], None]:
        decode = msgspec.msgpack.Decoder(FromRank).decode

        def handle(frame: bytes) -> None:
            try:
                message = decode(frame)
            except msgspec.DecodeError as error:
                self.kill(rank, f"rank {rank} sent nonsense: {error}")
                return
            match message:
                case Ready():
                    self._on_ready(root, message)
                case RankFault():
                    root.reason = root.reason or f"rank {rank}: {message.reason}"
                case _:
                    self._owed.heard(trio.current_time(), message)
                    self._events.message(message)

        return handle

    def _on_ready(self, root: _Root, ready: Ready) -> None:
        root.ready.add(ready.rank)
        log.info("rank ready", rank=ready.rank, kind=root.kind, attention=ready.attention)
        self._events.up(RankUp(ready.rank, root.kind, ready.incarnation))
        if len(root.ready) == len(root.ranks):
            root.serving.set()
        if all(len(r.ready) == len(r.ranks) for r in self._roots):
            self.all_ready.set()

    def _start(self, root: _Root, rank: int) -> RankStart:
        assert self._loaded is not None
        return rank_start(
            self._config,
            self._loaded,
            self._files,
            rank,
            root.ranks.start,
            root.generation,
            self._pace,
        )

    @contextmanager
    def _child(self, module: str, inherit: list[int]) -> Iterator[Child]:
        child = Child(module, inherit)
        try:
            yield child
        finally:
            child.end()

    @contextmanager
    def _children(self, root: _Root) -> Iterator[None]:
        module = "vertumnusd.rank" if self._pace is None else "vertumnusd.rank.paced"
        with ExitStack() as stack:
            for rank in root.ranks:
                child = stack.enter_context(self._child(module, self._files.all()))
                root.children[rank] = child
            try:
                yield
            finally:
                root.children.clear()
