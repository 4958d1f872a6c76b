"""The rank processes that are measured: started as the daemon starts them, spoken to one at a time.

A profile has nothing to do while a rank computes, so its end of the sockets is plain and blocking.
Anything that a rank reports as broken ends the profile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from vertumnusd.config import Config
from vertumnusd.frames import FrameReader, write_frame
from vertumnusd.messages import (
    FromHelper,
    FromProbe,
    FromRank,
    Loaded,
    LoadModel,
    LoadProgress,
    Message,
    ModelInfo,
    Probed,
    RankFault,
    RankStart,
    Ready,
    Refused,
    ReserveFailed,
    StepFailed,
)
from vertumnusd.node.memory import MemoryFiles
from vertumnusd.node.rank_start import rank_start
from vertumnusd.node.spawn import spawn

RANKS, PROBES = 1, 2  # generations: the groups of either have names of their own
M = TypeVar("M", bound=Message)


class HostError(Exception):
    """A process cannot go on, or did not answer in time; the message has its own reason."""


class StartError(HostError):
    """The ranks never became ready."""


class Child:
    """One process and our end of its socket, which is its life line."""

    def __init__(self, name: str, module: str, inherit: Sequence[int], receives: Any) -> None:
        self._process, self._socket = spawn(module, inherit)
        self.name = name
        self.pid = self._process.pid
        self._reader = FrameReader(self._socket)
        self._decode: Callable[[bytes], Message] = msgspec.msgpack.Decoder(receives).decode

    def send(self, message: Message) -> None:
        try:
            write_frame(self._socket, msgspec.msgpack.encode(message))
        except OSError as error:
            raise HostError(f"{self.name} is gone") from error

    def receive(self, kind: type[M], patience_s: float) -> M:
        """The next message of this kind; others are skipped. Raises HostError."""
        self._socket.settimeout(patience_s)
        while True:
            try:
                frame = self._reader.read()
            except TimeoutError as error:
                late = f"{self.name} sent no {kind.__name__} within {patience_s:g} s"
                raise HostError(late) from error
            if frame is None:
                raise HostError(f"{self.name} ended with status {self._process.wait()}")
            match self._decode(frame):
                case RankFault() | StepFailed() as failure:
                    raise HostError(f"{self.name}: {failure.reason}")
                case ReserveFailed() | Refused() as failure:
                    raise HostError(f"{self.name} answered {failure}")
                case message if isinstance(message, kind):
                    return message

    def kill(self) -> None:
        self._process.kill()

    def reap(self) -> None:
        self._process.wait()
        self._socket.close()


@contextmanager
def _children() -> Iterator[list[Child]]:
    """Those that are put into the list end together: a rank that outlives its peers complains."""
    children: list[Child] = []
    try:
        yield children
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.reap()


@dataclass(frozen=True, slots=True)
class Host:
    """Prefill ranks that are ready, in their order."""

    config: Config
    loaded: Loaded
    ranks: list[Child]
    _files: MemoryFiles

    @property
    def model(self) -> ModelInfo:
        return self.loaded.model

    def probe(self, patience_s: float) -> list[Probed]:
        """What ranks cost each other, by rank; the KV in the pools is lost. Raises HostError."""
        with _children() as probes:
            for rank in range(self.config.cluster.ranks):
                inherit = self._files.all()
                name = f"probe {rank}"
                probes.append(Child(name, "vertumnusd.rank.probe", inherit, FromProbe))
            for rank, child in enumerate(probes):
                child.send(_start(self.config, self.loaded, self._files, rank, PROBES))
            return [child.receive(Probed, patience_s) for child in probes]


@contextmanager
def running_host(
    config: Config, model: ModelInfo, path: Path, say: Callable[[str], None]
) -> Iterator[Host]:
    """Load the weights, start helper and prefill ranks; end them with the block.

    ``say`` hears how far loading is. Raises StartError.
    """
    files = MemoryFiles.create(config, model)
    try:
        with _children() as children:
            try:
                host = _start_host(children, files, config, model, path, say)
            except HostError as error:
                raise StartError(str(error)) from error
            yield host
    finally:
        files.close()


def _start_host(
    children: list[Child],
    files: MemoryFiles,
    config: Config,
    model: ModelInfo,
    path: Path,
    say: Callable[[str], None],
) -> Host:
    def child(name: str, module: str, receives: Any) -> Child:
        children.append(Child(name, module, files.all(), receives))
        return children[-1]

    count = config.cluster.ranks
    ranks = [child(f"rank {rank}", "vertumnusd.rank", FromRank) for rank in range(count)]
    helper = child("the host helper", "vertumnusd.rank.host_helper", FromHelper)
    host = config.node.rank_host
    helper.send(LoadModel(str(path), model.name, model.dtype, files.weights, host))
    loaded = _loaded(helper, config.rank.start_timeout_s, say)
    say("starting ranks")
    for number, rank in enumerate(ranks):
        rank.send(_start(config, loaded, files, number, RANKS))
    for rank in ranks:
        rank.receive(Ready, config.rank.start_timeout_s)
    return Host(config, loaded, ranks, files)


def _start(
    config: Config, loaded: Loaded, files: MemoryFiles, rank: int, generation: int
) -> RankStart:
    root = rank - rank % max(config.cluster.cp_degrees)
    return rank_start(config, loaded, files, rank, root, generation)


def _loaded(helper: Child, patience_s: float, say: Callable[[str], None]) -> Loaded:
    while True:
        # Whichever comes: ``patience_s`` is for the next sign of life, not for the whole load.
        match helper.receive(Message, patience_s):
            case LoadProgress() as progress:
                percent = 100 * progress.loaded_bytes // max(1, progress.total_bytes)
                say(f"loading weights: {percent} %")
            case Loaded() as loaded:
                return loaded
