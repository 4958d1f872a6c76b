"""Attention by the flash-attn package, on CUDA in half precision.

Its varlen form is the one without a batch dimension: sequences lie behind one another, and here
there is one. It takes grouped heads and strided rows, and aligns its causal mask to the bottom
right, as ``attention.attend`` defines it. Its paged form wants blocks of 256 tokens or multiples of
that, so prefixes in smaller blocks are gathered before (``blocks.gather``).
"""

from __future__ import annotations

from flash_attn import flash_attn_varlen_func
from torch import Tensor

from vertumnus_kernels.borders import borders
from vertumnus_kernels.merge import Part


def attend(q_THD: Tensor, k_SKD: Tensor, v_SKD: Tensor, causal: bool, scale: float) -> Part:
    """As ``attention.attend``."""
    queries, keys = q_THD.shape[0], k_SKD.shape[0]
    out_THD, lse_HT, _ = flash_attn_varlen_func(
        q_THD,
        k_SKD,
        v_SKD,
        cu_seqlens_q=borders(queries, q_THD.device),
        cu_seqlens_k=borders(keys, q_THD.device),
        max_seqlen_q=queries,
        max_seqlen_k=keys,
        softmax_scale=scale,
        causal=causal,
        return_attn_probs=True,  # which is how it is asked for the log-sum-exp
    )
    return out_THD.float(), lse_HT
