"""The definitions, in plain torch: fall-backs, and what every faster form must equal."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from vertumnus_kernels.merge import Part


def attend(q_THD: Tensor, k_SKD: Tensor, v_SKD: Tensor, causal: bool, scale: float) -> Part:
    """As ``attention.attend``."""
    group = q_THD.shape[1] // k_SKD.shape[1]
    k_SHD = k_SKD.repeat_interleave(group, dim=1).float()
    v_SHD = v_SKD.repeat_interleave(group, dim=1).float()
    scores_HTS = torch.einsum("thd,shd->hts", q_THD.float(), k_SHD) * scale
    if causal:
        past = k_SKD.shape[0] - q_THD.shape[0]
        future_TS = torch.ones(scores_HTS.shape[1:], dtype=torch.bool).triu(past + 1)
        scores_HTS = scores_HTS.masked_fill(future_TS, float("-inf"))
    lse_HT = torch.logsumexp(scores_HTS, dim=-1)
    weights_HTS = torch.exp(scores_HTS - lse_HT.unsqueeze(-1))
    return torch.einsum("hts,shd->thd", weights_HTS, v_SHD), lse_HT


def linear(x_TI: Tensor, w_OI: Tensor) -> Tensor:
    """As ``linear.linear``."""
    return functional.linear(x_TI, w_OI)
