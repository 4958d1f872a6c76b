"""Zigzag: which tokens of the uncached suffix each rank of a worker computes.

The suffix of R tokens is cut into 2C chunks of equal length (to one token) and rank k takes
chunks k and 2C − 1 − k. A query's work grows with its position, so an early chunk and its mirror
image cost every rank the same. Everything here is a pure function of (R, C, cp_rank): all ranks
of a worker derive the same cut without a word between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise


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
