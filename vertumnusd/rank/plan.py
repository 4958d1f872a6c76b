"""Zigzag: which tokens of the uncached suffix each rank of a worker computes.

The suffix of R tokens is cut into 2C chunks of equal length (to one token) and rank k takes
chunks k and 2C − 1 − k. A query's work grows with its position, so an early chunk and its mirror
image cost every rank the same. Everything here is a pure function of (R, C, cp_rank): all ranks
of a worker derive the same cut without a word between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby


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


def chunks(suffix_tokens: int, degree: int, cp_rank: int) -> tuple[Chunk, ...]:
    """The rank's chunks in suffix order; none are empty, and touching ones are one chunk.

    A rank may have no chunk at all (R < 2C); it still takes part in every exchange.
    """
    cuts = 2 * degree if degree > 1 else 1
    found: list[Chunk] = []
    row = 0
    for index in sorted({cp_rank, cuts - 1 - cp_rank}):
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
    writable: Iterable[int],
    block_ids: Sequence[int],
    first_block: int,
    full_blocks: int,
    home_ranks: int,
) -> list[tuple[slice, int]]:
    """The complete suffix blocks to store, in as few copies as their pool ids allow.

    ``writable`` are indices into the chain, whose pool ids are ``block_ids``; the suffix begins at
    block ``first_block`` and completes ``full_blocks`` blocks. Each run is (which blocks of the
    suffix, id of the first one): inside a run ids rise by one, and blocks by ``home_ranks``, since
    the ranks of a home own them in turn.
    """
    blocks = sorted(block - first_block for block in writable)
    complete = [block for block in blocks if block < full_blocks]

    def run(numbered: tuple[int, int]) -> tuple[int, int]:
        number, block = numbered
        return block - number * home_ranks, block_ids[first_block + block] - number

    found = []
    for _, members in groupby(enumerate(complete), key=run):
        own = [block for _, block in members]
        found.append((slice(own[0], own[-1] + 1, home_ranks), block_ids[first_block + own[0]]))
    return found
