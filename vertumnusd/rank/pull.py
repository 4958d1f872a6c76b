"""Copies KV of a chain from the pools of its span into a decode rank's own blocks.

Blocks lie in runs on both sides: in each pool of the span the ids of a chain mostly rise by one,
and the blocks that one of its ranks owns are every ``home_ranks``-th of the chain, so they go
to ids which rise by that much. Each run is one strided copy per layer and needs no index tensor.

Shapes: 2 for K and V, N blocks, T tokens, H KV heads, D head dim.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from torch import Tensor
from vertumnus_kernels.blocks import gather, scatter

from vertumnusd.layout import owned_blocks
from vertumnusd.messages import Pull
from vertumnusd.rank.kv_pool import KVPool
from vertumnusd.rank.sources import Sources


@dataclass(frozen=True, slots=True)
class Run:
    """Source blocks ``source`` of rank ``rank``'s pool go to the blocks ``target`` of ours."""

    rank: int
    source: range
    target: range


def copy(pull: Pull, target_ids: Sequence[int], pools: Sources, own: KVPool) -> int:
    """Copy the layers of the Pull into the blocks ``target_ids``; the bytes copied.

    Raises ValueError for blocks or layers that are not there.
    """
    first, last = pull.first_layer, pull.last_layer
    if not 0 <= first <= last <= len(own.kv_2NTHD):
        raise ValueError(f"layers {first} to {last} of {len(own.kv_2NTHD)}")
    copied = 0
    for rank, own_runs in groupby(runs(pull, target_ids), key=lambda run: run.rank):
        pool, moved = pools[rank], list(own_runs)
        last_block = max(run.source[-1] for run in moved)
        if last_block >= pool.blocks:
            raise ValueError(f"block {last_block} of a pool of {pool.blocks}")
        for layer in range(first, last):
            source_2NTHD, target_2NTHD = pool.kv_2NTHD[layer], own.kv_2NTHD[layer]
            (_by_block if target_2NTHD.is_cuda else _by_run)(moved, source_2NTHD, target_2NTHD)
            copied += source_2NTHD[:, 0].nbytes * sum(len(run.source) for run in moved)
    return copied


def _by_run(moved: Sequence[Run], source_2NTHD: Tensor, target_2NTHD: Tensor) -> None:
    for run in moved:
        target_2NTHD[:, _slice(run.target)] = source_2NTHD[:, _slice(run.source)]


def _by_block(moved: Sequence[Run], source_2NTHD: Tensor, target_2NTHD: Tensor) -> None:
    """From device to device in one piece: there it is the number of copies that costs."""
    kv_2SHD = gather(source_2NTHD, [block for run in moved for block in run.source])
    target_ids = [block for run in moved for block in run.target]
    scatter(target_2NTHD, target_ids, kv_2SHD.to(target_2NTHD.device))


def runs(pull: Pull, target_ids: Sequence[int]) -> list[Run]:
    """All copies of a Pull, as few as the ids allow. ValueError if the target is too small."""
    source_ids = array("I", pull.block_ids)
    if len(source_ids) > len(target_ids):
        raise ValueError(f"{len(source_ids)} blocks to copy into {len(target_ids)}")
    found: list[Run] = []
    for rank in range(pull.home_base, pull.home_base + pull.home_ranks):
        owned = owned_blocks(rank, len(source_ids), pull.home_base, pull.rotation, pull.home_ranks)
        for block in owned:
            source, target = source_ids[block], target_ids[block]
            grown = _grown(found[-1], rank, source, target) if found else None
            if grown is None:
                found.append(Run(rank, range(source, source + 1), range(target, target + 1)))
            else:
                found[-1] = grown
    return found


def _grown(run: Run, rank: int, source: int, target: int) -> Run | None:
    """The run with one more block, or None if the block does not continue it."""
    step = target - run.target[-1]
    if rank != run.rank or source != run.source.stop or step < 1:
        return None
    if len(run.target) > 1 and step != run.target.step:
        return None
    sources = range(run.source.start, source + 1)
    return Run(rank, sources, range(run.target.start, target + 1, step))


def _slice(blocks: range) -> slice:
    return slice(blocks.start, blocks.stop, blocks.step)
