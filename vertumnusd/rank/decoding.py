"""What a decode rank computes with: the model over its own pool, and the pools it pulls from."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from vertumnus_kernels.attention import implementation

from vertumnusd.messages import Pull, RankStart
from vertumnusd.rank.assemble import open_decode_pool, open_model, open_pools
from vertumnusd.rank.decoder import Decoder
from vertumnusd.rank.device import finish, open_device
from vertumnusd.rank.pull import copy
from vertumnusd.rank.sampling import draw
from vertumnusd.rank.slots import Slot


class Decoding:
    """Implements ``decode.Decoding`` with torch."""

    def __init__(self, start: RankStart) -> None:
        self._device = open_device(start)
        self.name = implementation(self._device.type).name
        self._own = open_decode_pool(start, self._device)
        self._decoder = Decoder(open_model(start, self._device), self._own)
        self._pools = open_pools(start, self._device, own=False)

    def forward(self, running: Sequence[Slot]) -> list[int | FloatingPointError]:
        logits_BV = self._decoder.forward(running)
        return [_draw(slot, logits_V) for slot, logits_V in zip(running, logits_BV, strict=True)]

    def pull(self, pull: Pull, block_ids: Sequence[int]) -> int:
        copied_bytes = copy(pull, block_ids, self._pools, self._own)
        finish(self._device)
        return copied_bytes


def _draw(slot: Slot, logits_V: Tensor) -> int | FloatingPointError:
    try:
        return draw(logits_V, slot.opening.sampling, slot.position + 1)
    except FloatingPointError as error:
        return error
