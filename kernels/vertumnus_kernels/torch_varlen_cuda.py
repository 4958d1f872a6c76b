"""Attention by torch itself, its varlen form: on CUDA in half precision, with no other package."""

from __future__ import annotations

from torch import Tensor
from torch.nn.attention.varlen import AuxRequest, varlen_attn

from vertumnus_kernels.borders import borders
from vertumnus_kernels.merge import Part

CAUSAL, UNMASKED = (-1, 0), (-1, -1)  # keys seen to the left and to the right; −1 is all


def attend(q_THD: Tensor, k_SKD: Tensor, v_SKD: Tensor, causal: bool, scale: float) -> Part:
    """As ``attention.attend``."""
    queries, keys = q_THD.shape[0], k_SKD.shape[0]
    out_THD, lse_HT = varlen_attn(
        q_THD,
        k_SKD,
        v_SKD,
        borders(queries, q_THD.device),
        borders(keys, q_THD.device),
        queries,
        keys,
        return_aux=AuxRequest(lse=True),
        scale=scale,
        window_size=CAUSAL if causal else UNMASKED,
        enable_gqa=True,
    )
    return out_THD.float(), lse_HT
