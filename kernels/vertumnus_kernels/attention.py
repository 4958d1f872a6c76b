"""Attention that also returns its log-sum-exp, so that parts over different keys can be merged.

Shapes: T queries, S keys, H query heads, K KV heads (H a multiple of K), D head dim. Each faster
form is a module with an ``attend`` of its own. It may be missing here, stand on a private operator,
or mask in another way than it did: so each is tried against the plain form at start, and the first
one that agrees is used.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from vertumnus_kernels import plain
from vertumnus_kernels.merge import Part, merge

__all__ = ["Implementation", "Part", "attend", "implementation", "merge"]

Attend = Callable[[Tensor, Tensor, Tensor, bool, float], Part]


class Implementation(NamedTuple):
    name: str
    attend: Attend


# By kind of device, fastest first: name and module, which is imported only where it may be used.
CHOICES = {
    "cpu": {"onednn": "onednn", "torch-flash-cpu": "flash_cpu"},
    "cuda": {"flash-attn": "flash_attn_cuda", "torch-varlen": "torch_varlen_cuda"},
}
FALL_BACK = Implementation("plain", plain.attend)

# What every form must compute, and how well: CUDA's take half precision alone.
TRIED = {"cpu": (torch.float32, 1e-5), "cuda": (torch.bfloat16, 2e-2)}


def attend(q_THD: Tensor, k_SKD: Tensor, v_SKD: Tensor, causal: bool, scale: float) -> Part:
    """(out_THD, lse_HT) of softmax(scale · q kᵀ) v, both float32; the logarithm is natural.

    Causal means that the queries are the last T of the S tokens: query t sees keys ≤ S − T + t.
    There must be a query and a key: a query without keys has no attention to speak of.
    """
    assert q_THD.shape[0] > 0
    assert k_SKD.shape[0] >= (q_THD.shape[0] if causal else 1)
    return implementation(q_THD.device.type).attend(q_THD, k_SKD, v_SKD, causal, scale)


@functools.cache
def implementation(device: str = "cpu") -> Implementation:
    """The attention of this process on devices of this kind, chosen once."""
    for name, module in CHOICES[device].items():
        try:
            candidate: Attend = importlib.import_module(f"vertumnus_kernels.{module}").attend
            if agrees(candidate, device):
                return Implementation(name, candidate)
        except (ImportError, AttributeError):
            continue
    return FALL_BACK


def agrees(candidate: Attend, device: str = "cpu") -> bool:
    """Whether it gives what the plain form gives: large and small, masked and not, strided."""
    dtype, tolerance = TRIED[device]
    noise = torch.Generator().manual_seed(0)
    fused_THD = torch.randn(700, 10, 64, generator=noise, device="cpu").to(device, dtype)
    q_THD, k_SKD, v_SKD = fused_THD[:, :6], fused_THD[:, 6:8], fused_THD[:, 8:]
    try:
        for causal in (True, False):
            for queries in (700, 40, 1):
                case = (q_THD[-queries:], k_SKD, v_SKD, causal, 64**-0.5)
                for found, wanted in zip(candidate(*case), plain.attend(*case), strict=True):
                    if found.shape != wanted.shape or found.dtype != wanted.dtype:
                        return False
                    if not torch.allclose(found, wanted, atol=tolerance):
                        return False
    except (RuntimeError, AttributeError, TypeError):
        return False
    return True
