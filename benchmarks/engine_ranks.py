"""A few engine processes without a daemon: the tests and benchmarks drive ``Prefill`` directly.

Each process builds its groups and its Prefill as a rank does, one for every checkpoint that is
opened on it, and obeys the calls it is sent.
The caller plays lead and block table: block ids are handed out one after another.
"""

from __future__ import annotations

import multiprocessing
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vertumnusd.checkpoint import model_info
from vertumnusd.layout import exchange_bytes, kv_pool_bytes, owned_blocks, owner
from vertumnusd.messages import Begin, ModelInfo, RankStart, Sampling, Step, StepPart
from vertumnusd.rank.assemble import open_pools, open_prefill
from vertumnusd.rank.groups import CPU
from vertumnusd.rank.heap import keep_freed
from vertumnusd.rank.host_helper import open_store
from vertumnusd.rank.kv_pool import KVPool
from vertumnusd.rank.load import load, tensor_specs
from vertumnusd.rank.prefill import Prefill, PrefillError, StepResult

REPLY_S = 120.0
OPEN = "open"


@dataclass(frozen=True, slots=True)
class Shape:
    """How many ranks, and how their memory is cut."""

    ranks: int
    cp_degrees: tuple[int, ...]
    home_ranks: int = 1
    block_tokens: int = 8
    kv_blocks: int = 64
    exchange_tokens: int = 512
    dtype: str = "float32"
    collective_timeout_s: float = 20.0
    activation_bytes: int = 0
    debug_plans: bool = False
    exchange: str = "shared"
    cores: tuple[int, ...] = ()  # rank i runs on cores[i]


@dataclass(frozen=True, slots=True)
class Chain:
    """Where the KV of a prompt lies."""

    tokens: int
    block_ids: list[int]
    home_base: int
    home_ranks: int
    rotation: int


class EngineRanks:
    """The processes, by rank, and the worker that was adopted last."""

    def __init__(
        self,
        start: RankStart,
        home_ranks: int,
        pipes: list[Connection],
        processes: list[Any],
        number: int,
    ) -> None:
        self.start = start
        self.home_ranks = home_ranks  # of a chain's span, unless begin says otherwise
        self.pipes = pipes
        self.processes = processes
        self._number = number  # among the engines of these processes
        self.worker = range(1)
        self.id_step = 1  # 1: chains lie in one run; odd and larger: scattered
        self._next_id = [0] * len(pipes)
        self._requests = self._seq = 0
        self._parts: dict[str, StepPart] = {}
        self._pools: dict[int, KVPool] = {}

    @property
    def model(self) -> ModelInfo:
        return self.start.model

    def call(self, ranks: Sequence[int], method: str | Callable[..., Any], *args: Any) -> list[Any]:
        """The replies of these ranks' ``Prefill.method(*args)``; the first exception is raised.

        A function, which they must be able to import, is called with the Prefill before ``args``.
        """
        for rank in ranks:
            self.send(rank, method, *args)
        replies = [self.reply(rank) for rank in ranks]
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def send(self, rank: int, method: str | Callable[..., Any], *args: Any) -> None:
        self.pipes[rank].send((self._number, method, args))

    def reply(self, rank: int) -> Any:
        assert self.pipes[rank].poll(REPLY_S), f"rank {rank} does not answer"
        return self.pipes[rank].recv()

    def adopt(self, degree: int, base: int = 0) -> None:
        self.worker = range(base, base + degree)
        self.call(self.worker, "adopt", degree, base)

    def begin(
        self, tokens: Sequence[int], prefix: Chain | None = None, cached: int = 0,
        home_base: int | None = None, home_ranks: int = 0, rotation: int = 0,
    ) -> tuple[str, Chain]:  # fmt: skip
        """Start a prompt of which ``cached`` tokens are taken from ``prefix``."""
        home_base = self.worker.start if home_base is None else home_base
        home_ranks = home_ranks or self.home_ranks
        if prefix is not None:
            home_base, home_ranks = prefix.home_base, prefix.home_ranks
            rotation = prefix.rotation
        cached_blocks = cached // self.start.block_tokens
        blocks = -(-len(tokens) // self.start.block_tokens)
        ids = prefix.block_ids[:cached_blocks] if prefix else []
        for block in range(cached_blocks, blocks):
            rank = owner(block, home_base, rotation, home_ranks)
            ids.append(self._next_id[rank])
            self._next_id[rank] = (self._next_id[rank] + self.id_step) % self.start.kv_blocks
        self._requests += 1
        begin = Begin(
            0, 0, f"r{self._requests}", array("I", tokens[cached:]).tobytes(), cached,
            array("I", ids).tobytes(), home_base, home_ranks, rotation, Sampling(), 0,
        )  # fmt: skip
        self._parts[begin.request] = StepPart(begin.request, cached, len(tokens) - cached)
        for rank in self.worker:
            owned = owned_blocks(rank, blocks, home_base, rotation, home_ranks)
            fresh = {block: ids[block] for block in owned if block >= cached_blocks}
            self.call([rank], "begin", begin, fresh)
        return begin.request, Chain(len(tokens), ids, home_base, home_ranks, rotation)

    def step(self, requests: Sequence[str], first_layer: int, last_layer: int) -> Step:
        """The next step, of these requests."""
        self._seq += 1
        parts = tuple(self._parts[request] for request in requests)
        return Step(0, 0, self._seq, first_layer, last_layer, parts)

    def run_pack(
        self, requests: Sequence[str], first_layer: int, last_layer: int
    ) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        """Run the layers on all ranks; by request, the logits, and why it failed anywhere."""
        step = self.step(requests, first_layer, last_layer)
        results = self.call(self.worker, "run", step)
        logits = [item for result in results for item in result.logits.items()]
        assert len(logits) == len(dict(logits)), "one rank has the last token"
        return dict(logits), {r: why for result in results for r, why in result.failures.items()}

    def run(self, request: str, first_layer: int, last_layer: int) -> np.ndarray | None:
        """Run the layers on all ranks; the logits, if these are the last layers."""
        logits, failures = self.run_pack([request], first_layer, last_layer)
        if failures:
            raise PrefillError(failures[request])
        return logits.get(request)

    def prefill(
        self, tokens: Sequence[int], prefix: Chain | None = None, cached: int = 0, **where: int
    ) -> tuple[np.ndarray, Chain]:
        """Logits after the prompt, and where its KV is now."""
        request, chain = self.begin(tokens, prefix, cached, **where)
        logits = self.run(request, 0, self.model.layers)
        self.call(self.worker, "discard", request)
        assert logits is not None
        return logits, chain

    def kv(self, chain: Chain) -> torch.Tensor:
        """K and V of a chain's tokens: (layers, 2, tokens, KV heads, head dim)."""
        start, found = self.start, []
        for block, block_id in enumerate(chain.block_ids):
            rank = owner(block, chain.home_base, chain.rotation, chain.home_ranks)
            if rank not in self._pools:
                self._pools[rank] = KVPool(
                    start.kv_fds[rank], start.kv_blocks, start.model, start.block_tokens
                )
            found.append(torch.stack([kv[:, block_id] for kv in self._pools[rank].kv_2NTHD]))
        return torch.cat(found, dim=2)[:, :, : chain.tokens]


class RankProcesses:
    """Processes without an engine yet; each engine opened is one more on every rank."""

    def __init__(self, pipes: list[Connection], processes: list[Any]) -> None:
        self._pipes = pipes
        self._processes = processes
        self._engines = 0
        self._stores: list[Any] = []
        self.fds: list[int] = []

    def open(self, checkpoint: Path, shape: Shape) -> EngineRanks:
        """Load the checkpoint, once for all ranks, and open an engine on each."""
        assert shape.ranks == len(self._pipes)
        model = model_info(checkpoint, "", shape.dtype)
        weights_fd = os.memfd_create("weights")
        for _ in load(checkpoint, model, weights_fd):
            pass
        kv_bytes = kv_pool_bytes(model, shape.kv_blocks, shape.block_tokens)
        store = open_store("127.0.0.1")
        start = RankStart(
            rank=0, kind="prefill", incarnation=0, generation="g", model=model,
            tensors=tensor_specs(model)[0], weights_fd=weights_fd,
            store_host="127.0.0.1", store_port=store.port,
            cp_degrees=shape.cp_degrees,
            block_tokens=shape.block_tokens, kv_blocks=shape.kv_blocks,
            kv_fds=tuple(_memory(kv_bytes) for _ in range(shape.ranks)),
            exchange_fds=tuple(
                _memory(exchange_bytes(model, shape.exchange_tokens)) for _ in range(shape.ranks)
            ),
            exchange_tokens=shape.exchange_tokens, own_kv_fd=-1, own_kv_blocks=0, core=-1,
            collective_timeout_s=shape.collective_timeout_s, exchange=shape.exchange,
            activation_bytes=shape.activation_bytes, debug_plans=shape.debug_plans,
        )  # fmt: skip
        self._stores.append(store)
        self.fds += [weights_fd, *start.kv_fds, *start.exchange_fds]
        number, self._engines = self._engines, self._engines + 1
        engine = EngineRanks(start, shape.home_ranks, self._pipes, self._processes, number)
        engine.call(range(shape.ranks), OPEN, start, os.getpid())
        return engine


@contextmanager
def rank_processes(ranks: int, cores: tuple[int, ...] = ()) -> Iterator[RankProcesses]:
    """Start the processes; end them, and whatever was opened on them, at the end of the block."""
    context = multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    processes: list[Any] = []
    started = RankProcesses(pipes, processes)
    try:
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            core = cores[rank] if cores else -1
            process = context.Process(target=_rank_main, args=(theirs, rank, core))
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        yield started
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(5)
            process.kill()
            process.join()
            process.close()
        for fd in started.fds:
            os.close(fd)


@contextmanager
def engine_ranks(checkpoint: Path, shape: Shape) -> Iterator[EngineRanks]:
    """One engine, on processes of its own."""
    with rank_processes(shape.ranks, shape.cores) as processes:
        yield processes.open(checkpoint, shape)


def _memory(size_bytes: int) -> int:
    fd = os.memfd_create("ranks")
    os.ftruncate(fd, size_bytes)
    return fd


def _rank_main(pipe: Connection, rank: int, core: int) -> None:
    keep_freed()
    torch.set_num_threads(1)
    if core >= 0:
        os.sched_setaffinity(0, {core})
    opened: list[Prefill] = []
    while True:
        try:
            number, method, args = pipe.recv()
        except EOFError:
            return
        try:
            if method == OPEN:
                opened.append(_open(rank, *args))
                reply = None
            elif callable(method):
                reply = method(opened[number], *args)
            else:
                reply = getattr(opened[number], method)(*args)
        except Exception as error:
            reply = error
        if isinstance(reply, StepResult):
            logits = {request: each.numpy() for request, each in reply.logits.items()}
            reply = StepResult(logits, reply.failures)
        pipe.send(reply)


def _open(rank: int, start: RankStart, parent: int) -> Prefill:
    def inherit(fd: int) -> int:
        return os.open(f"/proc/{parent}/fd/{fd}", os.O_RDWR)

    fields = {name: getattr(start, name) for name in start.__struct_fields__}
    ours = {
        "rank": rank,
        "weights_fd": inherit(start.weights_fd),
        "kv_fds": tuple(inherit(fd) for fd in start.kv_fds),
        "exchange_fds": tuple(inherit(fd) for fd in start.exchange_fds),
    }
    start = RankStart(**fields | ours)
    return open_prefill(start, open_pools(start, CPU, own=True), CPU)
