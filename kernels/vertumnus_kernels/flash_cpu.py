"""Attention by torch's flash attention for CPU, which also returns the log-sum-exp.

The operator is private: it takes strided views and grouped heads, aligns its causal mask to the
top left, and ends the process when there is no query or no key.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vertumnus_kernels.merge import Part, merge

# With so few queries over so many keys, the query heads of a group are laid behind one another as
# one longer query: the group then reads its keys once instead of once per head.
PACKED_QUERIES = 8
PACKED_KEYS = 512


def attend(q_THD: Tensor, k_SKD: Tensor, v_SKD: Tensor, causal: bool, scale: float) -> Part:
    """As ``attention.attend``."""
    past = k_SKD.shape[0] - q_THD.shape[0]
    if not causal or q_THD.shape[0] == 1:
        return _unmasked(q_THD, k_SKD, v_SKD, scale)
    own = _flash(q_THD, k_SKD[past:], v_SKD[past:], True, scale)
    if past == 0:
        return own
    return merge([_unmasked(q_THD, k_SKD[:past], v_SKD[:past], scale), own])


def _unmasked(q_THD: Tensor, k_SKD: Tensor, v_SKD: Tensor, scale: float) -> Part:
    queries, heads, head_dim = q_THD.shape
    keys, kv_heads = k_SKD.shape[:2]
    if queries > PACKED_QUERIES or keys < PACKED_KEYS or heads == kv_heads:
        return _flash(q_THD, k_SKD, v_SKD, False, scale)
    packed = q_THD.reshape(queries, kv_heads, -1, head_dim).transpose(1, 2).flatten(0, 1)
    out, lse = _flash(packed, k_SKD, v_SKD, False, scale)
    out_THD = out.view(queries, -1, kv_heads, head_dim).transpose(1, 2).reshape(q_THD.shape)
    lse_HT = lse.view(kv_heads, queries, -1).transpose(1, 2).reshape(heads, queries)
    return out_THD, lse_HT


def _flash(q_THD: Tensor, k_SKD: Tensor, v_SKD: Tensor, causal: bool, scale: float) -> Part:
    # Half-precision keys are repacked at every call, which costs more than widening them here.
    out_1HTD, lse_1HT = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q_THD.transpose(0, 1).unsqueeze(0).float(),
        k_SKD.transpose(0, 1).unsqueeze(0).float(),
        v_SKD.transpose(0, 1).unsqueeze(0).float(),
        0.0,
        causal,
        scale=scale,
    )
    return out_1HTD[0].transpose(0, 1), lse_1HT[0]
