"""The KV pool of one rank: paged K and V of all layers, in memory that the ranks of a host share.

Shapes: L layers, 2 for K and V, N blocks, T tokens, H KV heads, D head dim. A rank writes its own
pool only, and reads those of its home's other ranks in place. Keys are stored with RoPE applied,
so the order in which an attention call meets them does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from vertumnusd.messages import ModelInfo
from vertumnusd.rank.weights import DTYPES, map_shared

# A scattered chain costs one attention call and one merge per run of consecutive blocks; beyond
# this many runs, gathering it into one piece is cheaper.
MAX_RUNS = 8


def runs(block_ids: Sequence[int]) -> list[tuple[int, int]]:
    """(first id, count) of each stretch of consecutive ids, in order."""
    ids = np.asarray(block_ids, dtype=np.int64)
    borders = [0, *(np.flatnonzero(np.diff(ids) != 1) + 1).tolist(), len(ids)]
    return [(int(ids[first]), stop - first) for first, stop in pairwise(borders) if stop > first]


class KVPool:
    """One rank's pool, over the memory file ``fd`` of ``layout.kv_pool_bytes`` bytes.

    ``own``: this rank writes it, and takes its memory at once.
    """

    def __init__(
        self, fd: int, blocks: int, model: ModelInfo, block_tokens: int, own: bool = False
    ) -> None:
        self.block_tokens = block_tokens
        shape = (model.layers, 2, blocks, block_tokens, model.kv_heads, model.head_dim)
        self.kv_LKNTHD = map_shared(fd, shape, DTYPES[model.dtype], populate=own)

    def pieces(
        self, layer: int, block_ids: Sequence[int], tokens: int
    ) -> list[tuple[Tensor, Tensor]]:
        """K and V (T, H, D) of the first ``tokens`` tokens of these blocks, in a few pieces.

        Views where the ids run on; one gathered copy where they are scattered.
        """
        stretches = runs(block_ids)
        if len(stretches) > MAX_RUNS:
            ids = torch.tensor(block_ids)
            k_NTHD, v_NTHD = (kv.index_select(0, ids) for kv in self.kv_LKNTHD[layer])
            return [(k_NTHD.flatten(0, 1)[:tokens], v_NTHD.flatten(0, 1)[:tokens])]
        found = []
        for first, count in stretches:
            k_NTHD, v_NTHD = self.kv_LKNTHD[layer, :, first : first + count]
            found.append((k_NTHD.flatten(0, 1)[:tokens], v_NTHD.flatten(0, 1)[:tokens]))
            tokens -= count * self.block_tokens
        return found

    def write(self, layer: int, block_id: int, offset: int, k_THD: Tensor, v_THD: Tensor) -> None:
        """Store consecutive tokens from token ``offset`` of a block on, over consecutive blocks."""
        start = block_id * self.block_tokens + offset
        stop = start + k_THD.shape[0]
        k_pool, v_pool = self.kv_LKNTHD[layer].flatten(1, 2)
        k_pool[start:stop] = k_THD
        v_pool[start:stop] = v_THD

    def write_blocks(self, layer: int, first_id: int, k_NTHD: Tensor, v_NTHD: Tensor) -> None:
        """Store whole blocks, wherever they lie, into consecutive blocks from ``first_id`` on."""
        stop = first_id + k_NTHD.shape[0]
        self.kv_LKNTHD[layer, 0, first_id:stop] = k_NTHD
        self.kv_LKNTHD[layer, 1, first_id:stop] = v_NTHD
