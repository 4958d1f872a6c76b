"""The Llama family, cut where attention happens: the caller brings its own attention.

Shapes: T tokens, E hidden, H query heads, K KV heads, D head dim, I intermediate, V vocabulary.
Weights come under the names of ``rank/load.py``: q, k, v and gate, up are fused, so that each is
one matrix product.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from vertumnusd.messages import ModelInfo


class Llama:
    """A decoder over shared weights; holds nothing of any request."""

    def __init__(self, info: ModelInfo, weights: dict[str, Tensor]) -> None:
        self.info = info
        self._weights = weights
        self._cos_PD, self._sin_PD = rope_table(info)

    def embed(self, ids_T: Tensor) -> Tensor:
        """Hidden states (T, E) of token ids, before the first layer."""
        return self._weights["embed"].index_select(0, ids_T)

    def qkv(self, layer: int, x_TE: Tensor, positions_T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (T, H, D), keys and values (T, K, D) of one layer, RoPE applied."""
        info = self.info
        normed_TE = self._norm(f"layers.{layer}.attn_norm", x_TE)
        fused_TD = functional.linear(normed_TE, self._weights[f"layers.{layer}.qkv"])
        heads_TJD = fused_TD.view(-1, info.heads + 2 * info.kv_heads, info.head_dim)
        turned = info.heads + info.kv_heads
        rotate(heads_TJD[:, :turned], self._cos_PD[positions_T], self._sin_PD[positions_T])
        return (
            heads_TJD[:, : info.heads],
            heads_TJD[:, info.heads : turned],
            heads_TJD[:, turned:],
        )

    def finish(self, layer: int, x_TE: Tensor, attn_THD: Tensor) -> Tensor:
        """The layer's output from its input and its attention: projection, residuals, MLP."""
        attn_TE = attn_THD.flatten(1)
        x_TE = x_TE + functional.linear(attn_TE, self._weights[f"layers.{layer}.o"])
        normed_TE = self._norm(f"layers.{layer}.mlp_norm", x_TE)
        both = functional.linear(normed_TE, self._weights[f"layers.{layer}.gate_up"])
        gate_TI, up_TI = both.chunk(2, dim=-1)
        inner_TI = functional.silu(gate_TI) * up_TI
        return x_TE + functional.linear(inner_TI, self._weights[f"layers.{layer}.down"])

    def logits(self, x_TE: Tensor) -> Tensor:
        """Next-token logits (T, V) of hidden states after the last layer."""
        head = self._weights["embed" if self.info.tied_embeddings else "head"]
        return functional.linear(self._norm("norm", x_TE), head)

    def _norm(self, name: str, x_TE: Tensor) -> Tensor:
        return functional.rms_norm(x_TE, x_TE.shape[-1:], self._weights[name], self.info.norm_eps)


def rope_table(info: ModelInfo) -> tuple[Tensor, Tensor]:
    """Cosine and sine (P, D / 2) of every position of the context, in float32."""
    exponents = torch.arange(0, info.head_dim, 2, dtype=torch.float32) / info.head_dim
    frequencies = 1.0 / info.rope_theta**exponents
    angles_PD = torch.outer(torch.arange(info.context_tokens, dtype=torch.float32), frequencies)
    return angles_PD.cos(), angles_PD.sin()


def rotate(x_TJD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> None:
    """Turn each pair (d, d + D / 2) of every head by its position's angle, in place."""
    cos_T1D, sin_T1D = cos_TD.unsqueeze(1), sin_TD.unsqueeze(1)
    low_TJD, high_TJD = x_TJD.chunk(2, dim=-1)
    turned_TJD = low_TJD * cos_T1D - high_TJD * sin_T1D
    high_TJD.copy_(high_TJD * cos_T1D + low_TJD * sin_T1D)
    low_TJD.copy_(turned_TJD)
