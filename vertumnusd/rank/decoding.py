"""What a decode rank computes with: the model over its own pool, and the pools it pulls from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor
from vertumnus_kernels.attention import implementation

from vertumnusd.messages import Pull, RankStart
from vertumnusd.rank.assemble import open_decode_pool, open_model, open_pools
from vertumnusd.rank.decode import Failure
from vertumnusd.rank.decoder import Decoder
from vertumnusd.rank.device import finish, is_out_of_memory, open_device
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

    def forward(self, running: Sequence[Slot]) -> list[int | Failure]:
        found = each_or_none(self._decoder.forward, running)
        return [_draw(slot, logits) for slot, logits in zip(running, found, strict=True)]

    def pull(self, pull: Pull, block_ids: Sequence[int]) -> int:
        copied_bytes = copy(pull, block_ids, self._pools, self._own)
        finish(self._device)
        return copied_bytes


def each_or_none(
    forward: Callable[[Sequence[Slot]], Tensor], running: Sequence[Slot]
) -> list[Tensor | MemoryError]:
    """The logits of each slot. Where memory is short for all of them, each is tried by itself, and
    those that it is short for even then have none.

    A slot may be tried twice: what it stores is the same again.
    """
    try:
        return list(forward(running))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        if len(running) == 1:
            return [MemoryError(str(error))]
    return [logits for slot in running for logits in each_or_none(forward, [slot])]


def _draw(slot: Slot, logits: Tensor | MemoryError) -> int | Failure:
    if isinstance(logits, MemoryError):
        return logits
    try:
        return draw(logits, slot.opening.sampling, slot.position + 1)
    except FloatingPointError as error:
        return error
