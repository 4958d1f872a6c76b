"""The Llama family, cut where attention happens: the caller brings its own attention.

Shapes: T tokens, E hidden, H query heads, K KV heads, J heads of q, k and v, D head dim, F heads
laid flat, I intermediate, V vocabulary.
Weights come under the names of ``rank/load.py``: q, k, v and gate, up are fused, so that each is
one matrix product.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from vertumnus_kernels.linear import linear, slabs

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
        turned = info.heads + info.kv_heads
        qkv_TJD = x_TE.new_empty(len(x_TE), turned + info.kv_heads, info.head_dim)
        for rows in slabs(len(x_TE)):
            normed_TE = self._norm(f"layers.{layer}.attn_norm", x_TE[rows])
            fused_TF = linear(normed_TE, self._weights[f"layers.{layer}.qkv"])
            fused_TJD = fused_TF.view(qkv_TJD[rows].shape)
            positions = positions_T[rows]
            rotate(
                fused_TJD[:, :turned],
                self._cos_PD[positions],
                self._sin_PD[positions],
                out_TJD=qkv_TJD[rows, :turned],
            )
            qkv_TJD[rows, turned:] = fused_TJD[:, turned:]
        return qkv_TJD[:, : info.heads], qkv_TJD[:, info.heads : turned], qkv_TJD[:, turned:]

    def finish(self, layer: int, x_TE: Tensor, attn_THD: Tensor) -> Tensor:
        """The layer's output from its input and its attention: projection, residuals, MLP.

        ``x_TE`` is overwritten and returned.
        """
        attn_TF = attn_THD.flatten(1).to(x_TE.dtype)
        for rows in slabs(len(x_TE)):
            slab_TE = x_TE[rows]
            slab_TE += linear(attn_TF[rows], self._weights[f"layers.{layer}.o"])
            normed_TE = self._norm(f"layers.{layer}.mlp_norm", slab_TE)
            gate_TI, up_TI = linear(normed_TE, self._weights[f"layers.{layer}.gate_up"]).chunk(
                2, -1
            )
            inner_TI = functional.silu(gate_TI).mul_(up_TI)
            slab_TE += linear(inner_TI, self._weights[f"layers.{layer}.down"])
        return x_TE

    def logits(self, x_TE: Tensor) -> Tensor:
        """Next-token logits (T, V) of hidden states after the last layer."""
        head = self._weights["embed" if self.info.tied_embeddings else "head"]
        return linear(self._norm("norm", x_TE), head)

    def _norm(self, name: str, x_TE: Tensor) -> Tensor:
        return functional.rms_norm(x_TE, x_TE.shape[-1:], self._weights[name], self.info.norm_eps)


def rope_table(info: ModelInfo) -> tuple[Tensor, Tensor]:
    """Cosine and sine (P, D / 2) of every position of the context, in float32."""
    exponents = torch.arange(0, info.head_dim, 2, dtype=torch.float32) / info.head_dim
    frequencies = 1.0 / info.rope_theta**exponents
    angles_PD = torch.outer(torch.arange(info.context_tokens, dtype=torch.float32), frequencies)
    return angles_PD.cos(), angles_PD.sin()


def rotate(x_TJD: Tensor, cos_TD: Tensor, sin_TD: Tensor, out_TJD: Tensor) -> None:
    """Turn each pair (d, d + D / 2) of every head by its position's angle, into ``out_TJD``."""
    cos_T1D, sin_T1D = cos_TD.unsqueeze(1), sin_TD.unsqueeze(1)
    low_TJD, high_TJD = x_TJD.chunk(2, dim=-1)
    out_low_TJD, out_high_TJD = out_TJD.chunk(2, dim=-1)
    torch.mul(low_TJD, cos_T1D, out=out_low_TJD).addcmul_(high_TJD, sin_T1D, value=-1)
    torch.mul(high_TJD, cos_T1D, out=out_high_TJD).addcmul_(low_TJD, sin_T1D)
