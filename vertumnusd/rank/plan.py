"""Zigzag: which tokens of the uncached suffix each rank of a worker computes.

The suffix of R tokens is cut into 2C chunks of equal length (to one token) and rank k takes
chunks k and 2C − 1 − k. A query's work grows with its position, so an early chunk and its mirror
image cost every rank the same. Everything here is a pure function of (R, C, cp_rank): all ranks
of a worker derive the same cut without a word between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


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
    writable: Iterable[int], block_ids: Sequence[int], first_block: int, full_blocks: int
) -> list[tuple[slice, int]]:
    """The complete suffix blocks to store, in as few copies as their pool ids allow.

    ``writable`` are indices into the chain, whose pool ids are ``block_ids``; the suffix begins at
    block ``first_block`` and completes ``full_blocks`` blocks. Each run is (which blocks of the
    suffix, id of the first one): ids rise by one inside a run, while blocks rise by a fixed step,
    since a rank of a larger home owns every second or fourth block only.
    """
    found: list[tuple[slice, int]] = []
    for chain_block in sorted(writable):
        block, block_id = chain_block - first_block, block_ids[chain_block]
        if not 0 <= block < full_blocks:
            continue
        if found:
            run, first_id = found[-1]
            count = len(range(run.start, run.stop, run.step))
            step = block - (run.stop - 1)
            if block_id == first_id + count and (count == 1 or step == run.step):
                found[-1] = (slice(run.start, block + 1, step), first_id)
                continue
        found.append((slice(block, block + 1, 1), block_id))
    return found
