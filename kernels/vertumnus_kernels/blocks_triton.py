"""Moves blocks by one Triton kernel, for CUDA: one launch, whatever the number of blocks.

Shapes as in ``blocks.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 4096  # elements that one program copies: 8 KiB in half precision


def gather(pool_2NTHD: Tensor, ids: Sequence[int]) -> Tensor:
    """As ``blocks.gather``."""
    _, _, block_tokens, kv_heads, head_dim = pool_2NTHD.shape
    kv_2SHD = pool_2NTHD.new_empty(2, len(ids) * block_tokens, kv_heads, head_dim)
    _move(pool_2NTHD, ids, kv_2SHD, True)
    return kv_2SHD


def scatter(pool_2NTHD: Tensor, ids: Sequence[int], kv_2SHD: Tensor) -> None:
    """As ``blocks.scatter``."""
    assert kv_2SHD.is_contiguous()
    _move(pool_2NTHD, ids, kv_2SHD, False)


def _move(pool_2NTHD: Tensor, ids: Sequence[int], kv_2SHD: Tensor, to_flat: bool) -> None:
    block_elements = pool_2NTHD[0, 0].numel()
    assert pool_2NTHD.stride(1) == block_elements
    index_B = torch.tensor(ids, dtype=torch.int64, device=pool_2NTHD.device)
    grid = (len(ids), 2, triton.cdiv(block_elements, CHUNK))
    with torch.cuda.device_of(pool_2NTHD):  # which may be another than the current one
        _move_chunk[grid](
            pool_2NTHD, kv_2SHD, index_B, pool_2NTHD.stride(0), block_elements, to_flat, CHUNK
        )


@triton.jit
def _move_chunk(  # type: ignore[no-untyped-def]
    pool, flat, ids, kv_stride, block_elements, to_flat: tl.constexpr, chunk: tl.constexpr
):
    block, kv = tl.program_id(0), tl.program_id(1)
    inside = tl.program_id(2) * chunk + tl.arange(0, chunk)
    there = inside < block_elements
    # Block ids are 64 bits wide: a pool has more elements than 32 bits can count.
    in_pool = pool + kv * kv_stride + tl.load(ids + block) * block_elements + inside
    in_flat = flat + (kv * tl.num_programs(0) + block) * block_elements + inside
    if to_flat:
        tl.store(in_flat, tl.load(in_pool, mask=there), mask=there)
    else:
        tl.store(in_pool, tl.load(in_flat, mask=there), mask=there)
