"""The KV pool of one rank: paged K and V of all layers, in memory that the ranks of a host share.

Each layer has a part of its own, of the shape that the model says it keeps. A rank writes its own
pool only, and reads those of its home's other ranks in place. Keys are stored with RoPE applied,
so the order in which an attention call meets them does not matter.

Shapes: 2 for K and V, N blocks, T tokens, S tokens of a run of blocks, H KV heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from vertumnus_kernels.blocks import gather

from vertumnusd.layout import kv_pool_bytes
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

    ``kv_2NTHD[layer]`` is that layer's part. ``own``: this rank writes the pool, and takes its
    memory at once. ``memory``, bytes on a device, takes the place of the file.
    """

    def __init__(
        self,
        fd: int,
        blocks: int,
        model: ModelInfo,
        block_tokens: int,
        own: bool = False,
        memory: Tensor | None = None,
    ) -> None:
        self.blocks = blocks
        self.block_tokens = block_tokens
        size_bytes = kv_pool_bytes(model, blocks, block_tokens)
        if memory is None:
            memory = map_shared(fd, (size_bytes,), torch.uint8, populate=own)
        kept = [model.kept(layer) for layer in range(model.layers)]
        parts = memory.split([blocks * block_tokens * layer.token_bytes for layer in kept])
        self.kv_2NTHD = [
            part.view(DTYPES[layer.dtype]).view(
                2, blocks, block_tokens, layer.kv_heads, layer.head_dim
            )
            for part, layer in zip(parts, kept, strict=True)
        ]
        self._kv_2SHD = [kv_2NTHD.flatten(1, 2) for kv_2NTHD in self.kv_2NTHD]

    def run(self, layer: int, first_id: int, blocks: int) -> Tensor:
        """K and V (2, S, H, D) of consecutive blocks, as a view."""
        start = first_id * self.block_tokens
        return self._kv_2SHD[layer][:, start : start + blocks * self.block_tokens]

    def pieces(
        self, layer: int, block_ids: Sequence[int], tokens: int
    ) -> list[tuple[Tensor, Tensor]]:
        """K and V (T, H, D) of the first ``tokens`` tokens of these blocks, in a few pieces.

        Views where the ids run on; one gathered copy where they are scattered.
        """
        stretches = runs(block_ids)
        if len(stretches) > MAX_RUNS:
            k_SHD, v_SHD = gather(self.kv_2NTHD[layer], block_ids)
            return [(k_SHD[:tokens], v_SHD[:tokens])]
        found = []
        for first, count in stretches:
            k_SHD, v_SHD = self.run(layer, first, count)
            found.append((k_SHD[:tokens], v_SHD[:tokens]))
            tokens -= count * self.block_tokens
        return found

    def write(self, layer: int, block_id: int, offset: int, k_THD: Tensor, v_THD: Tensor) -> None:
        """Store consecutive tokens from token ``offset`` of a block on, over consecutive blocks."""
        start = block_id * self.block_tokens + offset
        stop = start + k_THD.shape[0]
        self._kv_2SHD[layer][0, start:stop] = k_THD
        self._kv_2SHD[layer][1, start:stop] = v_THD

    def write_blocks(self, layer: int, first_id: int, k_NTHD: Tensor, v_NTHD: Tensor) -> None:
        """Store whole blocks, wherever they lie, into consecutive blocks from ``first_id`` on."""
        stop = first_id + k_NTHD.shape[0]
        self.kv_2NTHD[layer][0, first_id:stop] = k_NTHD
        self.kv_2NTHD[layer][1, first_id:stop] = v_NTHD
