"""The exchange of ranks that see the same memory: nothing is sent, and prefixes are read in place.

The exchange area of a worker's cp_rank 0 is the buffer of the whole worker. Every rank writes K
and V of its own chunks at their positions in the suffix, all meet at one barrier, and then every
rank reads the suffix as one contiguous view.

One barrier a layer is enough because the area is double buffered and the halves take turns. A
rank that writes turn n + 2 into the half of turn n has passed the barrier of turn n + 1, so every
peer has entered that barrier, hence has finished reading turn n. Turns count exchanges since the
geometry was adopted, not layers: when a paused request resumes, two exchanges in a row may be of
layers with the same parity. All ranks of a worker run the same steps, so their counts agree; and
a geometry changes only when no step is running, so no reader is left behind in an old one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vertumnusd.layout import exchange_area_bytes
from vertumnusd.messages import Kept, ModelInfo
from vertumnusd.rank.exchange import KV, Fetched, Prefix, Spans
from vertumnusd.rank.groups import Group
from vertumnusd.rank.kv_pool import MAX_RUNS, runs
from vertumnusd.rank.sources import Sources
from vertumnusd.rank.weights import DTYPES, map_shared


class SharedExchange:
    """An ``Exchange`` over the exchange areas and KV pools of a host's ranks.

    ``fds[i]`` is rank i's memory file, of ``layout.exchange_bytes`` bytes for ``tokens`` tokens;
    ``pools[i]`` its pool. ``barrier(group)`` waits for the group's ranks.
    """

    def __init__(
        self,
        fds: Sequence[int],
        pools: Sources,
        model: ModelInfo,
        tokens: int,
        barrier: Callable[[Group], None],
    ) -> None:
        self.tokens = tokens
        self.turn = 0
        self._kept = [model.kept(layer) for layer in range(model.layers)]
        shape = (2, exchange_area_bytes(model, tokens) // 2)
        areas = [map_shared(fd, shape, torch.uint8) for fd in fds]
        self._areas_22SHD = {
            kept: [_view(area, kept, tokens) for area in areas] for kept in set(self._kept)
        }
        self._pools = pools
        self._barrier = barrier
        self._group: Group | None = None

    def adopt(self, group: Group | None) -> None:
        """Use the buffer of this group from now on, starting at turn 0 as all its ranks do."""
        self._group = group
        self.turn = 0

    def put(self, layer: int, start: int, k_THD: Tensor, v_THD: Tensor) -> None:
        stop = start + k_THD.shape[0]
        k_SHD, v_SHD = self._half(layer)
        k_SHD[start:stop] = k_THD
        v_SHD[start:stop] = v_THD

    def meet(self, layer: int, tokens: int, spans: Spans) -> KV:
        assert self._group is not None
        self._barrier(self._group)
        k_SHD, v_SHD = self._half(layer)
        self.turn += 1
        return k_SHD[:tokens], v_SHD[:tokens]

    def fetch(self, layer: int, prefix: Prefix) -> Fetched:
        """The pieces are views where block ids run on."""
        return lambda: [
            piece
            for rank, ids in prefix
            for piece in self._pools[rank].pieces(
                layer, ids, len(ids) * self._pools[rank].block_tokens
            )
        ]

    def copied_tokens(self, prefix: Prefix) -> int:
        """Blocks whose ids run on are read in place."""
        scattered = ((rank, ids) for rank, ids in prefix if len(runs(ids)) > MAX_RUNS)
        return sum(len(ids) * self._pools[rank].block_tokens for rank, ids in scattered)

    def skip(self, turn: int, begun: bool) -> None:
        while self._group is not None and self.turn < turn:
            self.meet(0, 0, ())

    def _half(self, layer: int) -> Tensor:
        assert self._group is not None
        return self._areas_22SHD[self._kept[layer]][self._group.base][self.turn % 2]


def _view(area_2B: Tensor, kept: Kept, tokens: int) -> Tensor:
    """Both halves of an area as K and V (2, 2, S, H, D) of a layer that keeps this."""
    used_2B = area_2B[:, : tokens * kept.token_bytes]
    return used_2B.view(DTYPES[kept.dtype]).view(2, 2, tokens, kept.kv_heads, kept.head_dim)
