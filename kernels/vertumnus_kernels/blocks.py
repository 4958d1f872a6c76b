"""Moves whole blocks between a paged pool and contiguous memory.

Shapes: 2 for K and V, N blocks, T tokens of a block, S tokens, H KV heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def gather(pool_2NTHD: Tensor, ids: Sequence[int]) -> Tensor:
    """K and V (2, S, H, D) of these blocks, one behind the other, as one contiguous tensor."""
    index = torch.tensor(ids, device=pool_2NTHD.device)
    return pool_2NTHD.index_select(1, index).flatten(1, 2)
