"""Model families, one file each, and what the rest of a rank asks of them.

A decoder is cut where attention happens: the caller takes queries, keys and values of a layer from
``qkv``, does the attention over whatever cache it has, and gives the result to ``finish``.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from vertumnusd.messages import ModelInfo
from vertumnusd.rank.models.llama import Llama
from vertumnusd.rank.models.qwen3 import Qwen3
from vertumnusd.rank.models.qwen3_moe import Qwen3Moe


class Model(Protocol):
    """A decoder over shared weights; holds nothing of any request.

    Shapes: T tokens, E hidden, H query heads, K KV heads, D head dim, V vocabulary.
    """

    info: ModelInfo

    def embed(self, ids_T: Tensor) -> Tensor:
        """Hidden states (T, E), float32, of token ids, before the first layer."""
        ...

    def qkv(self, layer: int, x_TE: Tensor, positions_T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (T, H, D), keys and values (T, K, D) of one layer, RoPE applied."""
        ...

    def finish(self, layer: int, x_TE: Tensor, attn_THD: Tensor) -> Tensor:
        """The layer's output from its input and its attention; may overwrite ``x_TE``."""
        ...

    def logits(self, x_TE: Tensor) -> Tensor:
        """Next-token logits (T, V) of hidden states after the last layer."""
        ...


FAMILIES = {"llama": Llama, "qwen3": Qwen3, "qwen3_moe": Qwen3Moe}


def build(info: ModelInfo, weights: dict[str, Tensor]) -> Model:
    """The model of this checkpoint, over weights as ``rank/load.py`` names them."""
    return FAMILIES[info.architecture](info, weights)
