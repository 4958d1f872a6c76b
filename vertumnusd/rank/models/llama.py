"""The Llama family, cut where attention happens: the caller brings its own attention.

Shapes: T tokens, E hidden, H query heads, K KV heads, J heads of q, k and v, D head dim, F heads
laid flat, I intermediate, P positions, V vocabulary. Weights come under the names
of ``rank/load.py``: q, k, v and gate, up are fused, so that each is one matrix product.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional
from vertumnus_kernels.linear import linear, slabs

from vertumnusd.messages import ModelInfo
from vertumnusd.rank.weights import DTYPES


@dataclass(frozen=True, slots=True)
class _Layer:
    """The weights of one layer."""

    attn_norm: Tensor
    qkv: Tensor
    o: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Llama:
    """A decoder over shared weights; holds nothing of any request.

    Products, K and V are in the dtype of the weights. Hidden states are float32 whatever that is:
    what all layers add up in is where rounding would tell most.
    """

    def __init__(self, info: ModelInfo, weights: dict[str, Tensor]) -> None:
        self.info = info
        self._dtype = DTYPES[info.dtype]
        self._embed = weights["embed"]
        self._norm = weights["norm"]
        self._head = weights["embed" if info.tied_embeddings else "head"]
        self._layers = [
            _Layer(**{part.name: weights[f"layers.{layer}.{part.name}"] for part in fields(_Layer)})
            for layer in range(info.layers)
        ]
        self._cos_PD, self._sin_PD = rope_table(info)

    def embed(self, ids_T: Tensor) -> Tensor:
        """Hidden states (T, E) of token ids, before the first layer."""
        return self._embed.index_select(0, ids_T).float()

    def qkv(self, layer: int, x_TE: Tensor, positions_T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (T, H, D), keys and values (T, K, D) of one layer, RoPE applied."""
        info, weights = self.info, self._layers[layer]
        turned = info.heads + info.kv_heads
        qkv_TJD = torch.empty(len(x_TE), turned + info.kv_heads, info.head_dim, dtype=self._dtype)
        for rows in slabs(len(x_TE)):
            normed_TE = self._normed(x_TE[rows], weights.attn_norm)
            slab_TJD = linear(normed_TE, weights.qkv).view(qkv_TJD[rows].shape)
            cos_TD, sin_TD = self._cos_PD[positions_T[rows]], self._sin_PD[positions_T[rows]]
            rotate(slab_TJD[:, :turned], cos_TD, sin_TD, qkv_TJD[rows, :turned])
            qkv_TJD[rows, turned:] = slab_TJD[:, turned:]
        return qkv_TJD[:, : info.heads], qkv_TJD[:, info.heads : turned], qkv_TJD[:, turned:]

    def finish(self, layer: int, x_TE: Tensor, attn_THD: Tensor) -> Tensor:
        """The layer's output from its input and its attention: projection, residuals, MLP.

        ``x_TE`` is overwritten and returned.
        """
        weights = self._layers[layer]
        attn_TF = attn_THD.flatten(1).to(self._dtype)
        for rows in slabs(len(x_TE)):
            slab_TE = x_TE[rows]
            slab_TE += linear(attn_TF[rows], weights.o)
            both = linear(self._normed(slab_TE, weights.mlp_norm), weights.gate_up)
            gate_TI, up_TI = both.chunk(2, dim=-1)
            slab_TE += linear(functional.silu(gate_TI).mul_(up_TI), weights.down)
        return x_TE

    def logits(self, x_TE: Tensor) -> Tensor:
        """Next-token logits (T, V) of hidden states after the last layer."""
        return linear(self._normed(x_TE, self._norm), self._head)

    def _normed(self, x_TE: Tensor, weight_E: Tensor) -> Tensor:
        normed_TE = functional.rms_norm(x_TE, weight_E.shape, weight_E.float(), self.info.norm_eps)
        return normed_TE.to(self._dtype)


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
