"""One decode iteration: the next-token logits of all running requests in one forward.

The projections are batched over the requests; attention is per request, over its own blocks, where
the KV of the token going in is stored on the way. Blocks that lie in one run are read as one view.

Shapes: B running requests, S tokens of a run of blocks, E hidden, H heads, K KV heads, D head dim,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from vertumnus_kernels.attention import attend, merge

from vertumnusd.rank.kv_pool import KVPool, runs
from vertumnusd.rank.models import Model
from vertumnusd.rank.slots import Slot


class Decoder:
    """The model over the decode rank's own pool."""

    def __init__(self, model: Model, pool: KVPool) -> None:
        self._model = model
        self._pool = pool
        self._scale = model.info.head_dim**-0.5

    @torch.inference_mode()
    def forward(self, running: Sequence[Slot]) -> Tensor:
        """Logits (B, V), in float32, of the token after each slot's last one, which gets stored."""
        model = self._model
        x_BE = model.embed(torch.tensor([slot.token for slot in running]))
        positions_B = torch.tensor([slot.stored_tokens for slot in running])
        places = [runs(slot.block_ids) for slot in running]
        for layer in range(model.info.layers):
            q_BHD, k_BKD, v_BKD = model.qkv(layer, x_BE, positions_B)
            new_2BKD = torch.stack((k_BKD, v_BKD))
            attn = [
                self._attend(
                    q_BHD[row : row + 1],
                    new_2BKD[:, row],
                    [self._pool.run(layer, *place) for place in places[row]],
                    slot.stored_tokens,
                )
                for row, slot in enumerate(running)
            ]
            x_BE = model.finish(layer, x_BE, torch.cat(attn))
        return model.logits(x_BE).float().cpu()

    def _attend(
        self, q_1HD: Tensor, new_2KD: Tensor, views_2SKD: Sequence[Tensor], stored_tokens: int
    ) -> Tensor:
        """Store the new token behind the ``stored_tokens`` others and attend to all of them."""
        parts = []
        for kv_2SKD in views_2SKD:
            if stored_tokens < kv_2SKD.shape[1]:
                kv_2SKD[:, stored_tokens] = new_2KD
                kv_2SKD = kv_2SKD[:, : stored_tokens + 1]
            parts.append(attend(q_1HD, kv_2SKD[0], kv_2SKD[1], False, self._scale))
            stored_tokens -= kv_2SKD.shape[1]
            if stored_tokens < 0:
                break
        return merge(parts)[0]
