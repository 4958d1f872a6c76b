"""A rank that computes nothing and takes its time: ``python -m vertumnusd.rank.paced --fd N``.

Messages, threads, block tables and copies are those of every rank; only what computes is another.
A step lasts as long as the profile says. Dummy KV is one number for each block, in the pool's
memory where real KV would be: the checksum of all tokens up to the block's end. A checksum goes on
from where another one stopped, so a prefix hit, a copy or a hand-off that meets the wrong block
ends in a wrong answer. The token that follows a text depends on nothing but its checksum.

No torch here: forty of these start in seconds, and are small.
"""

from __future__ import annotations

import mmap
import os
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn
from zlib import crc32

from vertumnusd.layout import owner
from vertumnusd.messages import (
    Adopt,
    Adopted,
    Begin,
    Pace,
    Park,
    Parked,
    Pull,
    RankStart,
    Ready,
    Step,
    StepDone,
    StepFailed,
)
from vertumnusd.rank.__main__ import run_rank
from vertumnusd.rank.admission import Admission
from vertumnusd.rank.cache import Cache
from vertumnusd.rank.decode import DecodeRank, Failure
from vertumnusd.rank.link import Link
from vertumnusd.rank.loop import PrefillRank
from vertumnusd.rank.slots import Slot
from vertumnusd.rank.transfer import BlockCopy

NAME = "paced"
LATE_S = 0.01  # a rank that wakes up later than this was idle: its time starts anew
COPIED_AT_ONCE = 256  # blocks
FIRST_LETTER, LETTERS = ord("a"), 26


def checksum(tokens: bytes, before: int = 0) -> int:
    """Of u32 tokens that follow those of checksum ``before``."""
    return crc32(tokens, before)


def next_token(state: int) -> int:
    """What the dummy model draws after the text with this checksum: a letter."""
    return FIRST_LETTER + state % LETTERS


class Pool:
    """One rank's dummy KV: a number for each block."""

    def __init__(self, fd: int, blocks: int) -> None:
        memory = mmap.mmap(fd, 4 * blocks)
        self.states = memoryview(memory).cast("I")


class Metronome:
    """Lets time pass, without adding up the moments by which a process wakes too late."""

    def __init__(self) -> None:
        self._due = 0.0

    def beat(self, seconds: float) -> None:
        now = time.monotonic()
        began = self._due if now - self._due < LATE_S else now
        self._due = began + seconds
        time.sleep(max(0.0, self._due - now))


@dataclass(slots=True)
class _Job:
    admission: Admission
    layer_s: float
    state: int = 0  # checksum of all tokens


class PacedEngine:
    """Implements ``loop.Engine``."""

    def __init__(self, start: RankStart, link: Link, cache: Cache) -> None:
        assert start.pace is not None
        self._start = start
        self._pace: Pace = start.pace
        self._link = link
        self._cache = cache
        self._pools = [Pool(fd, start.kv_blocks) for fd in start.kv_fds]
        self.copier = Copier(self._pools, start.rank)
        self._metronome = Metronome()
        self._degree, self._base = 0, 0
        self._adopted: Adopt | None = None
        self._jobs: dict[str, _Job] = {}
        link.send(Ready(start.rank, start.incarnation, os.getpid(), NAME))

    def adopt(self, adopt: Adopt) -> None:
        if adopt != self._adopted:
            self._jobs.clear()
            self._adopted, self._degree, self._base = adopt, adopt.degree, adopt.base
        self._link.send(Adopted(self._start.rank, adopt.term, adopt.epoch, adopt.degree))

    def park(self, park: Park) -> None:
        self._jobs.clear()
        self._adopted = None
        self._link.send(Parked(self._start.rank, park.term, park.epoch))

    def begin(self, admission: Admission) -> None:
        begin = admission.begin
        uncached_tokens = len(begin.tokens) // 4
        prefill_s = self._pace.prefill_s(self._degree, uncached_tokens, begin.cached_tokens)
        job = _Job(admission, prefill_s / self._start.model.layers)
        job.state = self._write(begin, admission.writable)
        self._jobs[begin.request] = job

    def step(self, step: Step) -> None:
        """A pack pays once for what every prefill costs whatever its length."""
        rank, last = self._start.rank, step.last_layer == self._start.model.layers
        jobs = [self._jobs[p.request] for p in step.parts if p.request in self._jobs]
        elapsed_s = self._pack_layer_s(jobs) * (step.last_layer - step.first_layer)
        self._metronome.beat(elapsed_s)
        drawn = {}
        for part in step.parts:
            job = self._jobs.get(part.request)
            if job is None:
                reason = "the request is not known here"
                self._link.send(StepFailed(rank, step.epoch, step.seq, part.request, reason))
            elif last:
                self._finish(job)
                if rank == self._base:
                    drawn[part.request] = next_token(job.state)
        self._link.send(StepDone(rank, step.epoch, step.seq, elapsed_s, drawn))

    def _pack_layer_s(self, jobs: Sequence[_Job]) -> float:
        overhead_s = self._pace.prefill_s(self._degree, 0, 0) / self._start.model.layers
        return sum(job.layer_s for job in jobs) - max(0, len(jobs) - 1) * overhead_s

    def _finish(self, job: _Job) -> None:
        if job.admission.reservation is not None:
            self._cache.publish(job.admission.reservation)
        del self._jobs[job.admission.begin.request]

    def discard(self, request: str) -> None:
        self._jobs.pop(request, None)

    def _write(self, begin: Begin, writable: dict[int, int]) -> int:
        """Fill this rank's blocks of the suffix; the checksum of the whole input."""
        block_bytes = 4 * self._start.block_tokens
        first = begin.cached_tokens // self._start.block_tokens
        state = self._read(begin, first - 1) if first else 0
        own = self._pools[self._start.rank].states
        for n, at in enumerate(range(0, len(begin.tokens), block_bytes), first):
            state = checksum(begin.tokens[at : at + block_bytes], state)
            if n in writable:
                own[writable[n]] = state
        return state

    def _read(self, begin: Begin, block: int) -> int:
        """What stands in a block of the chain, wherever in its span it is."""
        rank = owner(block, begin.home_base, begin.rotation, begin.home_ranks)
        return self._pools[rank].states[array("I", begin.block_ids)[block]]


class Copier:
    """Implements ``transfer.Copier``."""

    def __init__(self, pools: Sequence[Pool], rank: int) -> None:
        self._pools = pools
        self._own = pools[rank]

    def pieces(self, copies: Sequence[BlockCopy]) -> Iterator[int]:
        for at in range(0, len(copies), COPIED_AT_ONCE):
            some = copies[at : at + COPIED_AT_ONCE]
            for rank, source, target in some:
                try:
                    self._own.states[target] = self._pools[rank].states[source]
                except IndexError as error:
                    raise ValueError(f"no block {source} or {target}") from error
            yield 4 * len(some)


class PacedDecoding:
    """Implements ``decode.Decoding``."""

    name = NAME

    def __init__(self, start: RankStart) -> None:
        assert start.pace is not None
        self._token_s = start.pace.token_s
        self._pools = [Pool(fd, start.kv_blocks) for fd in start.kv_fds]
        self._own = Pool(start.own_kv_fd, start.own_kv_blocks)
        self._block_tokens = start.block_tokens
        self._metronome = Metronome()

    def forward(self, running: Sequence[Slot]) -> list[int | Failure]:
        self._metronome.beat(self._token_s)
        return [self._draw(slot) for slot in running]

    def pull(self, pull: Pull, block_ids: Sequence[int]) -> int:
        sources = array("I", pull.block_ids)
        if len(sources) > len(block_ids):
            raise ValueError(f"{len(sources)} blocks to copy into {len(block_ids)}")
        for block, source in enumerate(sources):
            rank = owner(block, pull.home_base, pull.rotation, pull.home_ranks)
            self._own.states[block_ids[block]] = self._pools[rank].states[source]
        return 4 * len(sources)

    def _draw(self, slot: Slot) -> int:
        """Store the last token behind what is there, and draw the next one."""
        last, place = divmod(slot.stored_tokens, self._block_tokens)
        before = slot.block_ids[last] if place else slot.block_ids[last - 1]
        state = checksum(array("I", [slot.token]).tobytes(), self._own.states[before])
        self._own.states[slot.block_ids[last]] = state
        return next_token(state)


def serve(link: Link) -> NoReturn:
    """Become the rank that the first message describes."""
    start = link.read_start()
    rank: DecodeRank | PrefillRank
    if start.kind == "decode":
        rank = DecodeRank(start, link, PacedDecoding)
    else:
        rank = PrefillRank(start, link, PacedEngine)
    link.listen(rank.receive)
    rank.serve()


if __name__ == "__main__":
    run_rank(serve)
