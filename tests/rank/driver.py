"""Plays the daemon to real rank processes, synchronously: the tests' end of the sockets.

``host`` makes the memory files, starts the host helper, prefill ranks and decode ranks, and ends
them. ``Worker`` plays the lead of one worker. Run as a script it starts a host and another process
that inherits all its sockets, prints the ids of that one and of the host's, and waits to be killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from peer import Peer

from vertumnusd.layout import exchange_bytes, interleave, kv_pool_bytes, rotation
from vertumnusd.messages import (
    HASH_BYTES,
    Adopt,
    Adopted,
    Begin,
    BlocksChanged,
    Close,
    Closed,
    Drawn,
    FromHelper,
    FromRank,
    Generate,
    Loaded,
    LoadModel,
    Message,
    ModelInfo,
    Open,
    Pull,
    Pulled,
    RankStart,
    Ready,
    Release,
    Reserve,
    Reserved,
    Sampling,
    Step,
    StepDone,
    StepPart,
)
from vertumnusd.rank.kv_pool import KVPool

GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class Shape:
    """How many ranks, and how their memory is cut."""

    ranks: int = 2
    cp_degrees: tuple[int, ...] = (1, 2)
    home_ranks: int = 1
    decode_ranks: int = 1
    block_tokens: int = 4
    kv_blocks: int = 64
    decode_kv_blocks: int = 64
    collective_timeout_s: float = 20.0


@dataclass(slots=True)
class Host:
    """All processes of one host."""

    shape: Shape
    starts: list[RankStart]
    helper: Peer
    prefill: list[Peer]
    decode: list[Peer]
    epoch: int = 0
    requests: int = 0

    @property
    def model(self) -> ModelInfo:
        return self.starts[0].model

    def pool(self, rank: int) -> KVPool:
        """A prefill rank's KV pool, as every process of the host can see it."""
        start = self.starts[rank]
        return KVPool(start.kv_fds[rank], start.kv_blocks, start.model, start.block_tokens)

    def worker(self, degree: int, base: int = 0) -> Worker:
        """Have the ranks adopt this geometry at a new epoch."""
        self.epoch += 1
        worker = Worker(self, self.epoch, range(base, base + degree))
        for peer in worker.peers:
            peer.send(Adopt(worker.term, worker.epoch, degree, base))
        for peer in worker.peers:
            adopted = peer.receive(Adopted)
            assert (adopted.term, adopted.epoch) == (worker.term, worker.epoch)
        return worker

    def name(self) -> str:
        self.requests += 1
        return f"r{self.requests}"

    def generate(self, run: Run, blocks: int, new_tokens: int, **opening: Any) -> list[int]:
        """All tokens of the answer, by decode rank 0, after one Pull for each step of the run."""
        self.open(run, blocks, **opening)
        self.pull(run)
        self.start_generating(run, new_tokens)
        return [run.first_token, *self.drain([run.request])[run.request]]

    def open(
        self,
        run: Run,
        blocks: int,
        sampling: Sampling = GREEDY,
        stop_tokens: tuple[int, ...] = (),
    ) -> None:
        self.decode[0].send(Open(run.request, blocks, sampling, stop_tokens))

    def pull(self, run: Run) -> None:
        """Pull every step's layers and wait until all are here."""
        for first, last in run.layers:
            self.decode[0].send(
                Pull(
                    run.request,
                    first,
                    last,
                    run.block_ids,
                    run.home_base,
                    run.home_ranks,
                    run.rotation,
                )
            )
        for _, last in run.layers:
            pulled = self.decode[0].receive(Pulled)
            assert (pulled.request, pulled.last_layer) == (run.request, last)
            assert pulled.kv_bytes > 0

    def start_generating(self, run: Run, new_tokens: int) -> None:
        position = run.position
        self.decode[0].send(
            Generate(run.request, run.first_token, len(run.tokens), position, new_tokens)
        )

    def drain(self, requests: Sequence[str]) -> dict[str, list[int]]:
        """The tokens drawn for these requests until all of them finished."""
        drawn: dict[str, list[int]] = {request: [] for request in requests}
        waiting = set(requests)
        while waiting:
            message = self.decode[0].receive(Drawn)
            lines = zip(message.requests, message.tokens, message.finished, strict=True)
            for request, token, finished in lines:
                assert request in waiting, f"{request} draws after its end"
                drawn[request].append(token)
                if finished:
                    waiting.discard(request)
        return drawn

    def close(self, request: str) -> int:
        """Close a request at the decode rank; its free blocks after that."""
        self.decode[0].send(Close(request))
        closed = self.decode[0].receive(Closed)
        assert closed.request == request
        return closed.free_blocks


@dataclass(slots=True)
class Run:
    """One prefill as its lead knows it."""

    request: str
    tokens: list[int]
    blocks: int
    home_base: int
    home_ranks: int
    rotation: int
    cached_tokens: int
    block_ids: bytes
    position: int = 0
    first_token: int = -1
    layers: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Worker:
    """The lead of the worker that adopted its geometry last."""

    host: Host
    epoch: int
    ranks: range
    term: int = 1
    seq: int = 0

    @property
    def peers(self) -> list[Peer]:
        return [self.host.prefill[rank] for rank in self.ranks]

    def span(self, home_base: int, home_ranks: int) -> list[Peer]:
        return self.host.prefill[home_base : home_base + home_ranks]

    def send(self, message: Message) -> None:
        for peer in self.peers:
            peer.send(message)

    def reserve(
        self,
        tokens: Sequence[int],
        *,
        keep: bool = True,
        home_base: int | None = None,
        home_ranks: int = 0,
    ) -> Run:
        """Reserve in one home, or a wider span; the cached prefix is what all its ranks hold."""
        home_base = self.ranks.start if home_base is None else home_base
        home_ranks = home_ranks or self.host.shape.home_ranks
        request = self.host.name()
        message = self.reservation(request, tokens, keep, home_base, home_ranks)
        turn = rotation(message.chain, home_ranks)
        replies = []
        for peer in self.span(home_base, home_ranks):
            peer.send(message)
            replies.append(peer.receive(Reserved))
        cached_blocks = min(message.max_cached, *(reply.first_missing for reply in replies))
        ids = {reply.rank: reply.block_ids for reply in replies}
        return Run(
            request=request,
            tokens=list(tokens),
            blocks=message.blocks,
            home_base=home_base,
            home_ranks=home_ranks,
            rotation=turn,
            cached_tokens=cached_blocks * self.host.shape.block_tokens,
            block_ids=interleave(ids, message.blocks, home_base, turn),
        )

    def reservation(
        self, request: str, tokens: Sequence[int], keep: bool, home_base: int, home_ranks: int = 0
    ) -> Reserve:
        home_ranks = home_ranks or self.host.shape.home_ranks
        size = self.host.shape.block_tokens
        blocks, limit = -(-len(tokens) // size), (len(tokens) - 1) // size
        chain = chain_of(tokens, size)
        return Reserve(
            self.term, self.epoch, request, chain, blocks, limit, home_base, home_ranks, keep
        )

    def begin(self, run: Run, sampling: Sampling = GREEDY) -> None:
        self.send(self.beginning(run, sampling))

    def beginning(self, run: Run, sampling: Sampling) -> Begin:
        return Begin(
            term=self.term,
            epoch=self.epoch,
            request=run.request,
            tokens=array("I", run.tokens[run.cached_tokens :]).tobytes(),
            cached_tokens=run.cached_tokens,
            block_ids=run.block_ids,
            home_base=run.home_base,
            home_ranks=run.home_ranks,
            rotation=run.rotation,
            sampling=sampling,
            position=run.position,
        )

    def send_step(self, runs: Sequence[Run], first_layer: int, last_layer: int) -> Step:
        self.seq += 1
        step = Step(self.term, self.epoch, self.seq, first_layer, last_layer, parts_of(*runs))
        self.send(step)
        return step

    def step(self, run: Run, first_layer: int, last_layer: int) -> None:
        self.pack([run], first_layer, last_layer)

    def pack(self, runs: Sequence[Run], first_layer: int, last_layer: int) -> None:
        """Run layers on all ranks and wait for them; exactly the last step draws tokens."""
        step = self.send_step(runs, first_layer, last_layer)
        done = [peer.receive(StepDone) for peer in self.peers]
        assert all(reply.seq == step.seq for reply in done)
        drawn = [token for reply in done for token in reply.drawn.items()]
        assert len(drawn) == (len(runs) if last_layer == self.host.model.layers else 0)
        for run in runs:
            run.layers.append((first_layer, last_layer))
            run.first_token = dict(drawn).get(run.request, -1)

    def prefill(
        self,
        tokens: Sequence[int],
        *,
        sampling: Sampling = GREEDY,
        keep: bool = True,
        home_base: int | None = None,
        home_ranks: int = 0,
        layers_per_step: int = 2,
    ) -> Run:
        """A whole prefill; its blocks stay reserved."""
        run = self.reserve(tokens, keep=keep, home_base=home_base, home_ranks=home_ranks)
        self.begin(run, sampling)
        for first in range(0, self.host.model.layers, layers_per_step):
            self.step(run, first, min(first + layers_per_step, self.host.model.layers))
        return run

    def release(self, run: Run) -> list[BlocksChanged]:
        """Release the home's blocks; what its ranks then hold."""
        states = []
        for peer in self.span(run.home_base, run.home_ranks):
            peer.forget()
            peer.send(Release(run.request))
            states.append(peer.receive(BlocksChanged))
        return states


def parts_of(*runs: Run) -> tuple[StepPart, ...]:
    """These requests as a step names them."""
    return tuple(
        StepPart(run.request, run.cached_tokens, len(run.tokens) - run.cached_tokens)
        for run in runs
    )


def chain_of(tokens: Sequence[int], block_tokens: int) -> bytes:
    """The hashes of the complete blocks, chained, end to end."""
    parent, chain = b"", b""
    for end in range(block_tokens, len(tokens) + 1, block_tokens):
        block = array("I", tokens[end - block_tokens : end]).tobytes()
        parent = blake2b(parent + block, digest_size=HASH_BYTES).digest()
        chain += parent
    return chain


@contextmanager
def host(checkpoint: Path, shape: Shape, dtype: str = "float32") -> Iterator[Host]:
    """Start everything, wait until it serves; kill what is left at the end."""
    with ExitStack() as stack:
        weights_fd = _memory(stack, 0)
        helper = _peer(stack, "vertumnusd.rank.host_helper", [weights_fd], FromHelper)
        helper.send(LoadModel(str(checkpoint), "test", dtype, weights_fd, "127.0.0.1"))
        loaded = helper.receive(Loaded)
        starts = _starts(stack, shape, loaded, weights_fd)
        peers = [_peer(stack, "vertumnusd.rank", _descriptors(start), FromRank) for start in starts]
        for peer, start in zip(peers, starts, strict=True):
            peer.send(start)
        for peer, start in zip(peers, starts, strict=True):
            assert peer.receive(Ready).rank == start.rank
        yield Host(shape, starts, helper, peers[: shape.ranks], peers[shape.ranks :])


def _starts(stack: ExitStack, shape: Shape, loaded: Loaded, weights_fd: int) -> list[RankStart]:
    model, block_tokens = loaded.model, shape.block_tokens
    pool_bytes = kv_pool_bytes(model, shape.kv_blocks, block_tokens)
    own_bytes = kv_pool_bytes(model, shape.decode_kv_blocks, block_tokens)
    area_bytes = exchange_bytes(model, model.context_tokens)
    kv_fds = tuple(_memory(stack, pool_bytes) for _ in range(shape.ranks))
    exchange_fds = tuple(_memory(stack, area_bytes) for _ in range(shape.ranks))
    return [
        RankStart(
            rank=rank,
            kind="prefill" if rank < shape.ranks else "decode",
            incarnation=1,
            generation="test",
            model=model,
            tensors=loaded.tensors,
            weights_fd=weights_fd,
            store_host="127.0.0.1",
            store_port=loaded.store_port,
            cp_degrees=shape.cp_degrees,
            block_tokens=block_tokens,
            kv_blocks=shape.kv_blocks,
            kv_fds=kv_fds,
            exchange_fds=exchange_fds,
            exchange_tokens=model.context_tokens,
            own_kv_fd=_memory(stack, own_bytes) if rank >= shape.ranks else -1,
            own_kv_blocks=shape.decode_kv_blocks,
            core=-1,
            collective_timeout_s=shape.collective_timeout_s,
        )
        for rank in range(shape.ranks + shape.decode_ranks)
    ]


def _descriptors(start: RankStart) -> list[int]:
    own = [start.own_kv_fd] if start.kind == "decode" else []
    return [start.weights_fd, *start.kv_fds, *start.exchange_fds, *own]


def _memory(stack: ExitStack, size_bytes: int) -> int:
    fd = os.memfd_create("test")
    stack.callback(os.close, fd)
    os.ftruncate(fd, size_bytes)
    return fd


def _peer(stack: ExitStack, module: str, inherit: Sequence[int], receives: Any) -> Peer:
    peer = Peer(module, inherit, receives)
    stack.callback(peer.kill)
    return peer


if __name__ == "__main__":
    with host(Path(sys.argv[1]), Shape()) as running:
        everyone = [running.helper, *running.prefill, *running.decode]
        heir = subprocess.Popen(["sleep", "300"], pass_fds=[peer.fileno() for peer in everyone])
        print(heir.pid, *(peer.process.pid for peer in everyone), flush=True)
        heir.wait()
