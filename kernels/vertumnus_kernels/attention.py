"""Attention that also returns its log-sum-exp, so that parts over different keys can be merged.

Shapes: T queries, S keys, H query heads, K KV heads (H a multiple of K), D head dim. The faster
forms stand on private operators of torch: so each is tried against the plain form at start, and
the first that agrees is used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from vertumnus_kernels import flash_cpu, onednn, plain
from vertumnus_kernels.merge import Part, merge

__all__ = ["Implementation", "Part", "attend", "implementation", "merge"]

Attend = Callable[[Tensor, Tensor, Tensor, bool, float], Part]


class Implementation(NamedTuple):
    name: str
    attend: Attend


CHOICES = (
    Implementation("onednn", onednn.attend),
    Implementation("torch-flash-cpu", flash_cpu.attend),
)
FALL_BACK = Implementation("plain", plain.attend)


def attend(q_THD: Tensor, k_SKD: Tensor, v_SKD: Tensor, causal: bool, scale: float) -> Part:
    """(out_THD, lse_HT) of softmax(scale · q kᵀ) v, both float32; the logarithm is natural.

    Causal means that the queries are the last T of the S tokens: query t sees keys ≤ S − T + t.
    There must be a query and a key: a query without keys has no attention to speak of.
    """
    assert q_THD.shape[0] > 0
    assert k_SKD.shape[0] >= (q_THD.shape[0] if causal else 1)
    return implementation().attend(q_THD, k_SKD, v_SKD, causal, scale)


@functools.cache
def implementation() -> Implementation:
    """The attention of this process, chosen once."""
    return next((choice for choice in CHOICES if agrees(choice.attend)), FALL_BACK)


def agrees(candidate: Attend) -> bool:
    """Whether it gives what the plain form gives: large and small, masked and not, strided."""
    noise = torch.Generator().manual_seed(0)
    fused_THD = torch.randn(700, 10, 32, generator=noise)
    q_THD, k_SKD, v_SKD = fused_THD[:, :6], fused_THD[:, 6:8], fused_THD[:, 8:]
    try:
        for causal in (True, False):
            for queries in (700, 40, 1):
                case = (q_THD[-queries:], k_SKD, v_SKD, causal, 32**-0.5)
                for found, wanted in zip(candidate(*case), plain.attend(*case), strict=True):
                    if not torch.allclose(found, wanted, atol=1e-5):
                        return False
    except (RuntimeError, AttributeError, TypeError):
        return False
    return True
