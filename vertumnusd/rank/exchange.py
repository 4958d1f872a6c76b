"""How the ranks of a worker show each other the K and V of a layer: through shared memory.

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

from collections.abc import Sequence

import torch
from torch import Tensor

from vertumnusd.layout import exchange_bytes
from vertumnusd.messages import Kept, ModelInfo
from vertumnusd.rank.groups import Group
from vertumnusd.rank.weights import DTYPES, map_shared


class Exchange:
    """The exchange areas of a host's ranks, and the one in use.

    ``fds[i]`` is rank i's memory file, of ``layout.exchange_bytes`` bytes for ``tokens`` tokens.
    ``turn`` counts the exchanges since the geometry was adopted.
    """

    def __init__(self, fds: Sequence[int], model: ModelInfo, tokens: int) -> None:
        self.tokens = tokens
        self._kept = [model.kept(layer) for layer in range(model.layers)]
        shape = (2, exchange_bytes(model, tokens) // 2)
        areas = [map_shared(fd, shape, torch.uint8) for fd in fds]
        self._areas_22SHD = {
            kept: [_view(area, kept, tokens) for area in areas] for kept in set(self._kept)
        }
        self._group: Group | None = None
        self.turn = 0

    def adopt(self, group: Group) -> None:
        """Use the buffer of this group from now on, starting at turn 0 as all its ranks do."""
        self._group = group
        self.turn = 0

    def put(self, layer: int, start: int, k_THD: Tensor, v_THD: Tensor) -> None:
        """Show K and V of this rank's suffix tokens from ``start`` on, at the next meeting."""
        stop = start + k_THD.shape[0]
        k_SHD, v_SHD = self._half(layer)
        k_SHD[start:stop] = k_THD
        v_SHD[start:stop] = v_THD

    def meet(self, layer: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Wait for all ranks; K and V (S, H, D) of the whole suffix of ``tokens`` tokens.

        The views stay valid until this rank enters the next meeting.
        """
        assert self._group is not None
        self._group.barrier()
        k_SHD, v_SHD = self._half(layer)
        self.turn += 1
        return k_SHD[:tokens], v_SHD[:tokens]

    def _half(self, layer: int) -> Tensor:
        assert self._group is not None
        return self._areas_22SHD[self._kept[layer]][self._group.base][self.turn % 2]


def _view(area_2B: Tensor, kept: Kept, tokens: int) -> Tensor:
    """Both halves of an area as K and V (2, 2, S, H, D) of a layer that keeps this."""
    used_2B = area_2B[:, : tokens * kept.token_bytes]
    return used_2B.view(DTYPES[kept.dtype]).view(2, 2, tokens, kept.kv_heads, kept.head_dim)
