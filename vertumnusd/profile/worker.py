"""One prefill at a time on a worker of any degree: Adopt, Reserve, Begin, Step, and what it took.

A cached prefix costs nothing to make: the *quarry* is the longest prompt, prefilled once and kept,
and the prefix of any measured prompt is its first so many blocks. The home that stores it belongs
to the first worker of every degree. Measured prompts publish nothing: each leaves the pool as it
found it. Their hashes are counters, since a rank compares them and asks no more.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from vertumnusd.layout import interleave, rotation
from vertumnusd.messages import (
    HASH_BYTES,
    Adopt,
    Adopted,
    Begin,
    BlocksChanged,
    Release,
    Reserve,
    Reserved,
    Sampling,
    Step,
    StepDone,
    StepPart,
)
from vertumnusd.profile.disturbance import Stat, thread_stat
from vertumnusd.profile.host import Child, Host, HostError

TERM = 1
BOOKKEEPING_S = 60.0  # longest wait for an answer that needs no computing
STRIDE = 7919  # through the vocabulary: tokens vary, so that experts share the work


@dataclass(frozen=True, slots=True)
class Run:
    """One prefill: the slowest rank's time, as a lead would report it, and what each rank did."""

    elapsed_s: float
    stats: tuple[Stat, ...]


class Worker:
    """The worker at rank 0 of whatever degree was adopted last."""

    def __init__(self, host: Host, step_patience_s: float) -> None:
        self._host = host
        self._patience_s = step_patience_s
        self._block_tokens = host.config.cache.block_tokens
        self._epoch = self._degree = self._seq = self._requests = self._hashes = 0
        self._quarry = b""

    def adopt(self, degree: int) -> None:
        """Make the first ``degree`` ranks one worker. Nothing happens if they are one."""
        if degree == self._degree:
            return
        self._epoch += 1
        self._degree, self._seq = degree, 0
        ranks = self._host.ranks[:degree]
        for rank in ranks:
            rank.send(Adopt(TERM, self._epoch, degree, 0))
        for rank in ranks:
            rank.receive(Adopted, BOOKKEEPING_S)

    def dig(self, tokens: int) -> Run:
        """Prefill and keep the quarry: its prefixes, up to all of it, are cached from now on."""
        self._quarry = self._fresh_hashes(tokens // self._block_tokens)
        return self._prefill(self._quarry, tokens, 0, keep=True)

    def prefill(self, uncached_tokens: int, cached_tokens: int) -> Run:
        """Time one prefill behind that much of the quarry (whole blocks). Raises HostError."""
        tokens = cached_tokens + uncached_tokens
        cached_blocks = cached_tokens // self._block_tokens
        fresh = self._fresh_hashes(tokens // self._block_tokens - cached_blocks)
        chain = self._quarry[: cached_blocks * HASH_BYTES] + fresh
        return self._prefill(chain, tokens, cached_tokens, keep=False)

    def _prefill(self, chain: bytes, tokens: int, cached_tokens: int, keep: bool) -> Run:
        self._requests += 1
        request = f"profile-{self._requests}"
        begin = self._begin(request, chain, tokens, cached_tokens, keep)
        ranks = self._host.ranks[: self._degree]
        before = _stats(ranks)
        part = StepPart(request, cached_tokens, tokens - cached_tokens)
        step = Step(TERM, self._epoch, self._seq, 0, self._host.model.layers, (part,))
        self._seq += 1
        for rank in ranks:
            rank.send(begin)
            rank.send(step)
        done = [rank.receive(StepDone, self._patience_s) for rank in ranks]
        stats = tuple(now.since(then) for now, then in zip(_stats(ranks), before, strict=True))
        for rank in self._home():
            rank.send(Release(request))
            rank.receive(BlocksChanged, BOOKKEEPING_S)
        return Run(max(reply.elapsed_s for reply in done), stats)

    def _begin(
        self, request: str, chain: bytes, tokens: int, cached_tokens: int, keep: bool
    ) -> Begin:
        """Reserve the chain in the home and describe the job."""
        blocks = -(-tokens // self._block_tokens)
        usable = (tokens - 1) // self._block_tokens
        home = self._home()
        for rank in home:
            rank.send(
                Reserve(TERM, self._epoch, request, chain, blocks, usable, 0, len(home), keep)
            )
        replies = [rank.receive(Reserved, BOOKKEEPING_S) for rank in home]
        held = min(usable, *(reply.first_missing for reply in replies)) * self._block_tokens
        if held != cached_tokens:
            raise HostError(f"{held} tokens are cached where {cached_tokens} should be")
        turn = rotation(chain, len(home))
        ids = {rank: reply.block_ids for rank, reply in enumerate(replies)}
        return Begin(
            TERM, self._epoch, request, self._tokens(tokens - cached_tokens), cached_tokens,
            interleave(ids, blocks, 0, turn), 0, len(home), turn, Sampling(), 0,
        )  # fmt: skip

    def _home(self) -> list[Child]:
        return self._host.ranks[: self._host.config.home_ranks]

    def _fresh_hashes(self, blocks: int) -> bytes:
        first = self._hashes
        self._hashes += blocks
        return b"".join(n.to_bytes(HASH_BYTES, "big") for n in range(first, self._hashes))

    def _tokens(self, count: int) -> bytes:
        first = self._requests
        vocab = self._host.model.vocab
        return array("I", [(first + n * STRIDE) % vocab for n in range(count)]).tobytes()


def _stats(ranks: Sequence[Child]) -> list[Stat]:
    try:
        return [thread_stat(rank.pid) for rank in ranks]
    except OSError as error:
        raise HostError(f"a rank is gone: {error}") from error
