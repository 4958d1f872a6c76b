"""Copies blocks between the KV pools of one host: read in place, written once.

Consecutive blocks that go to consecutive places are copied as one stretch of memory a layer. A
piece is small enough that the core, the memory and the interpreter are free again before a running
step could notice; torch holds no lock while it copies one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vertumnusd.rank.sources import Sources
from vertumnusd.rank.transfer import BlockCopy

PIECE_BYTES = 1 << 20


class Stretch(NamedTuple):
    """``count`` blocks from ``source_id`` of a rank's pool on, to ours from ``target_id`` on."""

    source_rank: int
    source_id: int
    target_id: int
    count: int


class PoolCopier:
    """Copies into ``pools[rank]``; a ``Copier`` for ranks of one host."""

    def __init__(self, pools: Sources, rank: int) -> None:
        self._pools = pools
        self._own = pools[rank]

    def pieces(self, copies: Sequence[BlockCopy]) -> Iterator[int]:
        """Copy at most ``PIECE_BYTES`` (or one block of a layer) at each step; their bytes."""
        for stretch in stretches(copies):
            source = self._pools[stretch.source_rank]
            end = max(stretch.source_id, stretch.target_id) + stretch.count
            if end > min(source.blocks, self._own.blocks):
                raise ValueError(f"block {end - 1} of a pool of {source.blocks}")
            for layer, kv_2NTHD in enumerate(self._own.kv_2NTHD):
                at_once = max(1, PIECE_BYTES // kv_2NTHD[:, 0].nbytes)
                for at in range(0, stretch.count, at_once):
                    count = min(at_once, stretch.count - at)
                    taken_2SHD = source.run(layer, stretch.source_id + at, count)
                    self._own.run(layer, stretch.target_id + at, count).copy_(taken_2SHD)
                    yield taken_2SHD.nbytes


def stretches(copies: Sequence[BlockCopy]) -> list[Stretch]:
    """As few as the ids allow."""
    found: list[Stretch] = []
    for rank, source, target in sorted(copies):
        if found:
            last = found[-1]
            ends = (last.source_rank, last.source_id + last.count, last.target_id + last.count)
            if ends == (rank, source, target):
                found[-1] = last._replace(count=last.count + 1)
                continue
        found.append(Stretch(rank, source, target, 1))
    return found
