"""Merges attention over disjoint sets of keys by their log-sum-exp (natural logarithm)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Part = tuple[Tensor, Tensor]  # out (T, H, D) and log-sum-exp (H, T), both float32


def merge(parts: Sequence[Part]) -> Part:
    """Attention over all keys of the parts: softmax weights add up in proportion to their sums.

    Every row of every part must have seen a key.
    """
    out_THD, lse_HT = parts[0]
    for other_THD, other_lse_HT in parts[1:]:
        share_HT = torch.sigmoid(other_lse_HT - lse_HT)
        out_THD = torch.lerp(out_THD, other_THD, share_HT.t().unsqueeze(-1))
        lse_HT = torch.logaddexp(lse_HT, other_lse_HT)
    return out_THD, lse_HT
