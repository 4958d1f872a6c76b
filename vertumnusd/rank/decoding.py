"""What a decode rank computes with: the model over its own pool, and the pools it pulls from."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from vertumnus_kernels.attention import implementation

from vertumnusd.messages import Pull, RankStart
from vertumnusd.rank.assemble import open_pools
from vertumnusd.rank.decoder import Decoder
from vertumnusd.rank.kv_pool import KVPool
from vertumnusd.rank.models import build
from vertumnusd.rank.pull import copy
from vertumnusd.rank.sampling import draw
from vertumnusd.rank.slots import Slot
from vertumnusd.rank.weights import map_weights


class Decoding:
    """Implements ``decode.Decoding`` with torch."""

    def __init__(self, start: RankStart) -> None:
        self.name = implementation().name
        weights = map_weights(start.weights_fd, start.tensors, start.model.dtype)
        self._own = KVPool(
            start.own_kv_fd, start.own_kv_blocks, start.model, start.block_tokens, own=True
        )
        self._decoder = Decoder(build(start.model, weights), self._own)
        self._pools = open_pools(start, own=False)

    def forward(self, running: Sequence[Slot]) -> list[int | FloatingPointError]:
        logits_BV = self._decoder.forward(running)
        return [_draw(slot, logits_V) for slot, logits_V in zip(running, logits_BV, strict=True)]

    def pull(self, pull: Pull, block_ids: Sequence[int]) -> int:
        return copy(pull, block_ids, self._pools, self._own)


def _draw(slot: Slot, logits_V: Tensor) -> int | FloatingPointError:
    try:
        return draw(logits_V, slot.opening.sampling, slot.position + 1)
    except FloatingPointError as error:
        return error
