"""Qwen3 with a mixture of experts: each token's MLP is a weighted sum of a few of many small ones.

All rows of a step go to an expert together, however many slabs of the layer they come from: its
weights are read from memory once a step, and only if a token chose it. That is what both a prefill,
where an expert has few rows, and a decode iteration are bound by.

Shapes: T tokens, E hidden, X experts, A experts of a token, N tokens of an expert (or all of them,
one expert behind another), M those of a slab, I intermediate of an expert.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional
from vertumnus_kernels.linear import linear, slabs

from vertumnusd.messages import Experts, ModelInfo
from vertumnusd.rank.models.llama import Weights, mlp
from vertumnusd.rank.models.qwen3 import Qwen3


class Qwen3Moe(Qwen3):
    def __init__(self, info: ModelInfo, weights: Weights) -> None:
        super().__init__(info, weights)
        assert info.experts is not None
        self._experts = info.experts
        self._sparse_layers = frozenset(info.experts.layers)

    def finish(self, layer: int, x_TE: Tensor, attn_THD: Tensor) -> Tensor:
        if layer not in self._sparse_layers:
            return super().finish(layer, x_TE, attn_THD)
        weights = self._layers[layer]
        attn_TF = attn_THD.flatten(1).to(self._dtype)
        normed_TE = torch.empty_like(x_TE)
        for rows in slabs(len(x_TE)):
            x_TE[rows] += linear(attn_TF[rows], weights["o"])
            normed_TE[rows] = functional.rms_norm(
                x_TE[rows], x_TE.shape[1:], weights["mlp_norm"].float(), self.info.norm_eps
            )
        add_experts(weights, self._experts, normed_TE, x_TE)
        return x_TE


def add_experts(weights: Weights, experts: Experts, normed_TE: Tensor, x_TE: Tensor) -> None:
    """Add to ``x_TE`` what each token's experts make of its normalised row; both in float32."""
    experts_TA, share_TA = choose(normed_TE, weights["router"], experts)
    gate_up_XIE = weights["experts_gate_up"].view(experts.count, -1, x_TE.shape[1])
    down_XEI = weights["experts_down"].view(experts.count, x_TE.shape[1], -1)
    input_TE = normed_TE.to(gate_up_XIE.dtype)
    for expert, tokens_N, share_N in by_expert(experts_TA, share_TA):
        for rows in slabs(len(tokens_N)):
            tokens_M, share_M1 = tokens_N[rows], share_N[rows].unsqueeze(-1)
            input_ME = input_TE.index_select(0, tokens_M)
            output_ME = mlp(input_ME, gate_up_XIE[expert], down_XEI[expert])
            x_TE.index_add_(0, tokens_M, output_ME.float().mul_(share_M1))


def choose(normed_TE: Tensor, router_XE: Tensor, experts: Experts) -> tuple[Tensor, Tensor]:
    """The experts of every token and their shares in its output, both (T, A).

    In float32 whatever the weights are: a rounding error here would choose another expert.
    """
    probabilities_TX = torch.softmax(linear(normed_TE, router_XE.float()), dim=-1)
    share_TA, experts_TA = probabilities_TX.topk(experts.per_token, dim=-1)
    if experts.normalised:
        share_TA /= share_TA.sum(dim=-1, keepdim=True)
    return experts_TA, share_TA


def by_expert(experts_TA: Tensor, share_TA: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Each expert that somebody chose, with its tokens and their shares, both (N)."""
    experts_N, order_N = experts_TA.flatten().sort(stable=True)
    tokens_N, share_N = order_N // experts_TA.shape[1], share_TA.flatten()[order_N]
    used, counts = experts_N.unique_consecutive(return_counts=True)
    rows = counts.tolist()
    return zip(used.tolist(), tokens_N.split(rows), share_N.split(rows), strict=True)
