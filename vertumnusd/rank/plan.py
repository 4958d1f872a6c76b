"""The plan of a step: which tokens of which request each rank of a worker computes.

The suffix of a request, its R uncached tokens behind P cached ones, is cut in one of two ways:

* **Zigzag**: 2C chunks of equal length (to one token), of which rank k takes k and 2C − 1 − k. A
  query's work grows with its position, so an early chunk and its mirror image cost every rank the
  same.
* **Contiguous**: C chunks, where zigzag no longer matters. Then the last rank has most query-key
  pairs, ``R/C·(P + R − R/2C)`` against ``W(R, P)/C`` on average: a share of
  ``R/2·(1 − 1/C) / (P + R/2)`` too many. Once that is less than what a second chunk costs in
  calls and smaller products, each rank has one chunk.

The suffixes of a pack lie behind one another in the exchange, in the order of the step.

Everything here is a pure function of what a Step says and of C: all ranks of a worker come to the
same plan without a word between them, also those that have no token of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import groupby, pairwise

from vertumnusd.messages import Step

CONTIGUOUS_IMBALANCE = 0.02  # query-key pairs that the last rank may have above the average


@dataclass(frozen=True, slots=True)
class Chunk:
    """Suffix tokens ``start`` … ``stop - 1``, which are this rank's rows from ``row`` on."""

    start: int
    stop: int
    row: int

    @property
    def rows(self) -> slice:
        """Where the chunk lies in the rank's tensors."""
        return slice(self.row, self.row + self.stop - self.start)

    @property
    def tokens(self) -> slice:
        """Where the chunk lies in the suffix."""
        return slice(self.start, self.stop)


Chunks = tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class PartPlan:
    """One request of a step; ``by_rank`` are the chunks of each cp_rank."""

    request: str
    cached_tokens: int
    suffix_tokens: int
    offset: int  # of its suffix among those of the pack
    by_rank: tuple[Chunks, ...]

    @property
    def span(self) -> slice:
        """Where its suffix lies among those of the pack."""
        return slice(self.offset, self.offset + self.suffix_tokens)

    def most_rows(self) -> int:
        """Rows of the rank that has most of them."""
        return max(chunks[-1].rows.stop if chunks else 0 for chunks in self.by_rank)


@dataclass(frozen=True, slots=True)
class StepPlan:
    seq: int
    first_layer: int
    last_layer: int
    parts: tuple[PartPlan, ...]

    @property
    def tokens(self) -> int:
        """Suffix tokens of all parts."""
        return sum(part.suffix_tokens for part in self.parts)

    def spans(self) -> list[list[slice]]:
        """By cp_rank: the tokens it puts into the exchange, in that order."""
        degree = len(self.parts[0].by_rank)
        return [
            [
                slice(part.offset + chunk.start, part.offset + chunk.stop)
                for part in self.parts
                for chunk in part.by_rank[cp_rank]
            ]
            for cp_rank in range(degree)
        ]

    def digest(self) -> bytes:
        """The same on every rank, or something is very wrong."""
        return blake2b(repr(self).encode(), digest_size=16).digest()


def plan_step(step: Step, degree: int) -> StepPlan:
    parts, offset = [], 0
    for part in step.parts:
        by_rank = split(part.uncached_tokens, part.cached_tokens, degree)
        parts.append(
            PartPlan(part.request, part.cached_tokens, part.uncached_tokens, offset, by_rank)
        )
        offset += part.uncached_tokens
    return StepPlan(step.seq, step.first_layer, step.last_layer, tuple(parts))


@lru_cache(maxsize=64)  # a request is planned anew at each of its steps
def split(suffix_tokens: int, cached_tokens: int, degree: int) -> tuple[Chunks, ...]:
    """The chunks of every cp_rank.

    In suffix order; none are empty, and touching ones are one chunk. A rank may have no chunk at
    all, when there are few tokens; it still takes part in every exchange.
    """
    if is_contiguous(suffix_tokens, cached_tokens, degree):
        cuts, taken = degree, [{rank} for rank in range(degree)]
    else:
        cuts, taken = 2 * degree, [{rank, 2 * degree - 1 - rank} for rank in range(degree)]
    return tuple(_chunks(suffix_tokens, cuts, sorted(indices)) for indices in taken)


def is_contiguous(suffix_tokens: int, cached_tokens: int, degree: int) -> bool:
    """Whether zigzag no longer matters for this request."""
    surplus = suffix_tokens / 2 * (1 - 1 / degree)
    return surplus <= CONTIGUOUS_IMBALANCE * (cached_tokens + suffix_tokens / 2)


def _chunks(suffix_tokens: int, cuts: int, indices: Sequence[int]) -> Chunks:
    found: list[Chunk] = []
    row = 0
    for index in indices:
        start = index * suffix_tokens // cuts
        stop = (index + 1) * suffix_tokens // cuts
        if start == stop:
            continue
        if found and found[-1].stop == start:
            found[-1] = Chunk(found[-1].start, stop, found[-1].row)
        else:
            found.append(Chunk(start, stop, row))
        row += stop - start
    return tuple(found)


def block_runs(
    writable: Mapping[int, int], first_block: int, full_blocks: int
) -> list[tuple[slice, int]]:
    """The complete suffix blocks to store, in as few copies as their pool ids allow.

    ``writable`` has the pool ids by index into the chain, of which the suffix begins at block
    ``first_block`` and completes ``full_blocks`` blocks. Each run is (which blocks of the suffix,
    id of the first one): inside a run ids rise by one, and blocks by a constant stride, since the
    ranks of a span own them in turn.
    """
    complete = sorted(b for b in writable if first_block <= b < first_block + full_blocks)
    stride = min((after - block for block, after in pairwise(complete)), default=1)

    def run(numbered: tuple[int, int]) -> tuple[int, int]:
        number, block = numbered
        return block - number * stride, writable[block] - number

    found = []
    for _, members in groupby(enumerate(complete), key=run):
        own = [block for _, block in members]
        blocks = slice(own[0] - first_block, own[-1] - first_block + 1, stride)
        found.append((blocks, writable[own[0]]))
    return found
