"""Attention that also returns its log-sum-exp, so that parts over different keys can be merged.

Shapes: T queries, S keys, H query heads, K KV heads (H a multiple of K), D head dim. All
log-sum-exps are natural. The fast path is torch's private flash attention for CPU; since it is
private it is tried at start, against the plain form, and replaced by that if anything is off.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Part = tuple[Tensor, Tensor]
Attend = Callable[[Tensor, Tensor, Tensor, bool, float], Part]

# Up to this many queries, a group's query heads are laid behind one another as one longer query:
# the group then reads its keys once instead of once per head.
PACKED_QUERIES = 16


class Implementation(NamedTuple):
    name: str
    attend: Attend


def attend(q_THD: Tensor, k_SKD: Tensor, v_SKD: Tensor, causal: bool, scale: float) -> Part:
    """(out_THD, lse_HT) of softmax(scale · q kᵀ) v; causal means T = S and query t sees keys ≤ t.

    T and S are at least 1: a query without keys has no attention to speak of.
    """
    assert q_THD.shape[0] > 0
    assert k_SKD.shape[0] > 0
    return implementation().attend(q_THD, k_SKD, v_SKD, causal, scale)


def merge(parts: Sequence[Part]) -> Part:
    """Attention over the union of the parts' keys, which must not overlap."""
    out_THD, lse_HT = parts[0]
    for other_THD, other_lse_HT in parts[1:]:
        share_HT = torch.sigmoid(other_lse_HT - lse_HT)
        out_THD = torch.lerp(out_THD, other_THD, share_HT.t().unsqueeze(-1).to(out_THD.dtype))
        lse_HT = torch.logaddexp(lse_HT, other_lse_HT)
    return out_THD, lse_HT


@functools.cache
def implementation() -> Implementation:
    """The attention of this process, chosen once."""
    fast = Implementation("torch-flash-cpu", attend_flash)
    return fast if _agrees(fast.attend) else Implementation("plain", attend_plain)


def attend_plain(q_THD: Tensor, k_SKD: Tensor, v_SKD: Tensor, causal: bool, scale: float) -> Part:
    """The definition, in float32: the fall-back and the twin of every faster form."""
    groups = q_THD.shape[1] // k_SKD.shape[1]
    k_SHD = k_SKD.repeat_interleave(groups, dim=1).float()
    v_SHD = v_SKD.repeat_interleave(groups, dim=1).float()
    scores_HTS = torch.einsum("thd,shd->hts", q_THD.float(), k_SHD) * scale
    if causal:
        future_TS = torch.ones(scores_HTS.shape[1:], dtype=torch.bool).triu(1)
        scores_HTS = scores_HTS.masked_fill(future_TS, float("-inf"))
    lse_HT = torch.logsumexp(scores_HTS, dim=-1)
    weights_HTS = torch.exp(scores_HTS - lse_HT.unsqueeze(-1))
    return torch.einsum("hts,shd->thd", weights_HTS, v_SHD).to(q_THD.dtype), lse_HT


def attend_flash(q_THD: Tensor, k_SKD: Tensor, v_SKD: Tensor, causal: bool, scale: float) -> Part:
    """torch's flash attention for CPU, on strided views of the inputs."""
    if causal or q_THD.shape[0] > PACKED_QUERIES:
        return _flash(q_THD, k_SKD, v_SKD, causal, scale)
    queries, _, head_dim = q_THD.shape
    kv_heads = k_SKD.shape[1]
    packed = q_THD.view(queries, kv_heads, -1, head_dim).transpose(1, 2)
    out, lse = _flash(packed.flatten(0, 1), k_SKD, v_SKD, False, scale)
    out_THD = out.view(queries, -1, kv_heads, head_dim).transpose(1, 2).flatten(1, 2)
    lse_HT = lse.view(kv_heads, queries, -1).transpose(1, 2).flatten(0, 1)
    return out_THD, lse_HT


def _flash(q_THD: Tensor, k_SKD: Tensor, v_SKD: Tensor, causal: bool, scale: float) -> Part:
    out_1HTD, lse_1HT = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q_THD.transpose(0, 1).unsqueeze(0),
        k_SKD.transpose(0, 1).unsqueeze(0),
        v_SKD.transpose(0, 1).unsqueeze(0),
        0.0,
        causal,
        scale=scale,
    )
    return out_1HTD[0].transpose(0, 1), lse_1HT[0]


def _agrees(candidate: Attend) -> bool:
    """Whether it gives what the plain form gives, for grouped heads, masked and not."""
    noise = torch.Generator().manual_seed(0)
    q_THD, k_SKD, v_SKD = (torch.randn(40, heads, 32, generator=noise) for heads in (6, 2, 2))
    try:
        for causal, queries in ((True, 40), (False, 40), (False, 3)):
            case = (q_THD[:queries], k_SKD, v_SKD, causal, 32**-0.5)
            for found, wanted in zip(candidate(*case), attend_plain(*case), strict=True):
                if not torch.allclose(found, wanted, atol=1e-5):
                    return False
    except (RuntimeError, AttributeError, TypeError):
        return False
    return True
