"""Moves whole blocks between a paged pool and contiguous memory.

Shapes: 2 for K and V, N blocks of the pool, B blocks moved, T tokens of a block, S = B · T tokens,
H KV heads, D head dim. The pool's blocks are contiguous.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from vertumnus_kernels import plain


def gather(pool_2NTHD: Tensor, ids: Sequence[int]) -> Tensor:
    """K and V (2, S, H, D) of these blocks, one behind the other, as one contiguous tensor."""
    moved: Tensor = implementation(pool_2NTHD.device.type).gather(pool_2NTHD, ids)
    return moved


def scatter(pool_2NTHD: Tensor, ids: Sequence[int], kv_2SHD: Tensor) -> None:
    """Store K and V, contiguous, into these blocks of the pool; no id may come twice."""
    implementation(pool_2NTHD.device.type).scatter(pool_2NTHD, ids, kv_2SHD)


@functools.cache
def implementation(device: str) -> ModuleType:
    """The module whose ``gather`` and ``scatter`` are used on devices of this kind."""
    if device == "cuda":
        try:
            candidate = importlib.import_module("vertumnus_kernels.blocks_triton")
        except ImportError:
            return plain
        if agrees(candidate, device):
            return candidate
    return plain


def agrees(candidate: ModuleType, device: str) -> bool:
    """Whether it moves what the plain form moves, and nothing else."""
    pool_2NTHD = torch.arange(2 * 9 * 5 * 3 * 8, device=device).view(2, 9, 5, 3, 8).float()
    ids = [7, 0, 8, 3]
    twins = pool_2NTHD.clone(), pool_2NTHD.clone()
    try:
        moved_2SHD = candidate.gather(pool_2NTHD, ids)
        candidate.scatter(twins[0], ids, -moved_2SHD)
    except (RuntimeError, AttributeError, TypeError):
        return False
    wanted_2SHD = plain.gather(pool_2NTHD, ids)
    plain.scatter(twins[1], ids, -wanted_2SHD)
    return torch.equal(moved_2SHD, wanted_2SHD) and torch.equal(*twins)
