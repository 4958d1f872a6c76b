"""The Llama family, cut where attention happens: the caller brings its own attention.

Shapes: T tokens, E hidden, H query heads, K KV heads, J heads of q, k and v, D head dim, F heads
laid flat, I intermediate, P positions, V vocabulary. Weights come under the names
of ``rank/load.py``: q, k, v and gate, up are fused, so that each is one matrix product. Other
families are this one with a step replaced.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from vertumnus_kernels.linear import linear, slabs

from vertumnusd.messages import ModelInfo
from vertumnusd.rank.models.rope import rope_table, rotate
from vertumnusd.rank.weights import DTYPES

Weights = dict[str, Tensor]


class Llama:
    """A decoder over shared weights; holds nothing of any request.

    Products, K and V are in the dtype of the weights. Hidden states are float32 whatever that is:
    what all layers add up in is where rounding would tell most.
    """

    def __init__(self, info: ModelInfo, weights: Weights) -> None:
        self.info = info
        self._dtype = DTYPES[info.dtype]
        self._embed = weights["embed"]
        self._norm = weights["norm"]
        self._head = weights["embed" if info.tied_embeddings else "head"]
        self._layers: list[Weights] = [{} for _ in range(info.layers)]
        for name, tensor in weights.items():
            if name.startswith("layers."):
                _, layer, part = name.split(".")
                self._layers[int(layer)][part] = tensor
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
            normed_TE = self._normed(x_TE[rows], weights["attn_norm"])
            slab_TJD = linear(normed_TE, weights["qkv"]).view(qkv_TJD[rows].shape)
            cos_TD, sin_TD = self._cos_PD[positions_T[rows]], self._sin_PD[positions_T[rows]]
            qk_TJD = self._before_rope(weights, slab_TJD[:, :turned])
            rotate(qk_TJD, cos_TD, sin_TD, qkv_TJD[rows, :turned])
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
            slab_TE += linear(attn_TF[rows], weights["o"])
            normed_TE = self._normed(slab_TE, weights["mlp_norm"])
            slab_TE += mlp(normed_TE, weights["gate_up"], weights["down"])
        return x_TE

    def logits(self, x_TE: Tensor) -> Tensor:
        """Next-token logits (T, V) of hidden states after the last layer."""
        return linear(self._normed(x_TE, self._norm), self._head)

    def _before_rope(self, weights: Weights, qk_TJD: Tensor) -> Tensor:
        """What becomes of queries and keys, (T, H + K, D), between projection and RoPE."""
        return qk_TJD

    def _normed(self, x_TE: Tensor, weight_E: Tensor) -> Tensor:
        normed_TE = functional.rms_norm(x_TE, weight_E.shape, weight_E.float(), self.info.norm_eps)
        return normed_TE.to(self._dtype)


def mlp(x_TE: Tensor, gate_up_IE: Tensor, down_EI: Tensor) -> Tensor:
    """silu(gate · x) ⊙ (up · x), projected down: (T, E)."""
    gate_TI, up_TI = linear(x_TE, gate_up_IE).chunk(2, dim=-1)
    return linear(functional.silu(gate_TI).mul_(up_TI), down_EI)
