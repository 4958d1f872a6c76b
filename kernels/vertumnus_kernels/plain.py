"""The definitions, in plain torch: fall-backs, and what every faster form must equal."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from vertumnus_kernels.merge import Part

BLOCK = 256  # queries at a time, so that scores are bounded, and those that none sees left out


def attend(q_THD: Tensor, k_SKD: Tensor, v_SKD: Tensor, causal: bool, scale: float) -> Part:
    """As ``attention.attend``: block after block of queries, each over the keys it may see."""
    past = k_SKD.shape[0] - q_THD.shape[0]
    parts = []
    for start in range(0, q_THD.shape[0], BLOCK):
        q_BHD = q_THD[start : start + BLOCK]
        seen = past + start + q_BHD.shape[0] if causal else k_SKD.shape[0]
        parts.append(_attend_block(q_BHD, k_SKD[:seen], v_SKD[:seen], causal, scale))
    return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts], 1)


def _attend_block(q_BHD: Tensor, k_SKD: Tensor, v_SKD: Tensor, causal: bool, scale: float) -> Part:
    queries, group = q_BHD.shape[0], q_BHD.shape[1] // k_SKD.shape[1]
    k_SHD = k_SKD.repeat_interleave(group, dim=1).float()
    v_SHD = v_SKD.repeat_interleave(group, dim=1).float()
    scores_HBS = torch.einsum("bhd,shd->hbs", q_BHD.float(), k_SHD) * scale
    if causal:
        future_BB = torch.ones(queries, queries, dtype=torch.bool, device=q_BHD.device).triu(1)
        scores_HBS[:, :, -queries:].masked_fill_(future_BB, float("-inf"))
    lse_HB = torch.logsumexp(scores_HBS, dim=-1)
    weights_HBS = torch.exp(scores_HBS - lse_HB.unsqueeze(-1))
    return torch.einsum("hbs,shd->bhd", weights_HBS, v_SHD), lse_HB


def linear(x_TI: Tensor, w_OI: Tensor) -> Tensor:
    """As ``linear.linear``."""
    return functional.linear(x_TI, w_OI)


def gather(pool_2NTHD: Tensor, ids: Sequence[int]) -> Tensor:
    """As ``blocks.gather``."""
    index_B = torch.tensor(ids, device=pool_2NTHD.device)
    return pool_2NTHD.index_select(1, index_B).flatten(1, 2)


def scatter(pool_2NTHD: Tensor, ids: Sequence[int], kv_2SHD: Tensor) -> None:
    """As ``blocks.scatter``."""
    index_B = torch.tensor(ids, device=pool_2NTHD.device)
    blocks_2BTHD = kv_2SHD.unflatten(1, (len(ids), pool_2NTHD.shape[2]))
    pool_2NTHD.index_copy_(1, index_B, blocks_2BTHD)
