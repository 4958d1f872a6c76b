"""Rotary position embedding: the angle of each pair of a head at each position, and the turn.

Scalings are as transformers defines them, to the order of operations, so that keys agree to the
last bits. Shapes: T tokens, J heads, D head dim, P positions of the context.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vertumnusd.messages import DividedRope, LinearRope, Llama3Rope, ModelInfo, YarnRope


def rope_table(info: ModelInfo) -> tuple[Tensor, Tensor]:
    """Cosine and sine (P, D / 2) of every position of the context, in float32.

    Both are multiplied by yarn's attention factor, if there is one.
    """
    positions_P = torch.arange(info.context_tokens, dtype=torch.float32)
    angles_PD = torch.outer(positions_P, frequencies(info))
    scaling = info.rope_scaling
    length = scaling.attention_factor if isinstance(scaling, YarnRope) else 1.0
    return angles_PD.cos() * length, angles_PD.sin() * length


def frequencies(info: ModelInfo) -> Tensor:
    """The angle (D / 2) by which each pair turns from one position to the next."""
    exponents_D = torch.arange(0, info.head_dim, 2, dtype=torch.float32) / info.head_dim
    plain_D = 1.0 / info.rope_theta**exponents_D
    match info.rope_scaling:
        case None:
            return plain_D
        case LinearRope(factor):
            return plain_D / factor
        case Llama3Rope() as scaling:
            return _llama3(plain_D, scaling)
        case YarnRope() as scaling:
            return _yarn(plain_D, scaling, info)
        case DividedRope(divisors):
            return plain_D / torch.tensor(divisors, dtype=torch.float32)


def _llama3(plain_D: Tensor, scaling: Llama3Rope) -> Tensor:
    """By how often a pair turns within the original context: often kept, seldom divided."""
    turns_D = scaling.original_context_tokens / (2 * math.pi / plain_D)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept_D = ((turns_D - low) / (high - low)).clamp(0, 1)
    return (1 - kept_D) * plain_D / scaling.factor + kept_D * plain_D


def _yarn(plain_D: Tensor, scaling: YarnRope, info: ModelInfo) -> Tensor:
    def pair_that_turns(times: float) -> float:
        context = scaling.original_context_tokens / (times * 2 * math.pi)
        return info.head_dim * math.log(context) / (2 * math.log(info.rope_theta))

    low, high = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, info.head_dim - 1)
    pairs_D = torch.arange(len(plain_D), dtype=torch.float32)
    divided_D = ((pairs_D - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain_D / scaling.factor * divided_D + plain_D * (1 - divided_D)


def rotate(x_TJD: Tensor, cos_TD: Tensor, sin_TD: Tensor, out_TJD: Tensor) -> None:
    """Turn each pair (d, d + D / 2) of every head by its position's angle, into ``out_TJD``."""
    cos_T1D, sin_T1D = cos_TD.unsqueeze(1), sin_TD.unsqueeze(1)
    low_TJD, high_TJD = x_TJD.chunk(2, dim=-1)
    out_low_TJD, out_high_TJD = out_TJD.chunk(2, dim=-1)
    torch.mul(low_TJD, cos_T1D, out=out_low_TJD).addcmul_(high_TJD, sin_T1D, value=-1)
    torch.mul(high_TJD, cos_T1D, out=out_high_TJD).addcmul_(low_TJD, sin_T1D)
