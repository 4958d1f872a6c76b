"""The Qwen3 family: Llama whose queries and keys are normalised, head by head, before RoPE."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from vertumnusd.rank.models.llama import Llama, Weights


class Qwen3(Llama):
    def _before_rope(self, weights: Weights, qk_TJD: Tensor) -> Tensor:
        q_THD, k_TKD = qk_TJD.split((self.info.heads, self.info.kv_heads), dim=1)
        normed = [
            functional.rms_norm(heads.float(), weight.shape, weight.float(), self.info.norm_eps)
            for heads, weight in ((q_THD, weights["q_norm"]), (k_TKD, weights["k_norm"]))
        ]
        return torch.cat(normed, dim=1)
