"""Draws the next token: greedy, or by temperature and top-p from a seeded stream.

A draw is a pure function of (logits, sampling, position): the randomness comes from hashing seed
and position, not from a generator with state. So the same seed gives the same text whatever else
is in the batch, and a request that continues elsewhere at position n continues the same stream.
"""

from __future__ import annotations

from hashlib import blake2b

import torch
from torch import Tensor

from vertumnusd.messages import Sampling

LIKELY_TOKENS = 512  # sorting a whole vocabulary costs milliseconds and is rarely needed


def draw(logits_V: Tensor, sampling: Sampling, position: int) -> int:
    """The token at ``position`` of the answer, from float32 logits (V,).

    ``top_p`` keeps the fewest most likely tokens whose probabilities reach it, at least one.
    Raises FloatingPointError if the largest logit is infinite or any is not a number.
    """
    largest, token = logits_V.max(dim=0)
    if not torch.isfinite(largest):
        raise FloatingPointError("the model's logits are not finite")
    if sampling.temperature <= 0:
        return int(token)
    probabilities_V = torch.softmax((logits_V - largest).double() / sampling.temperature, dim=-1)
    if sampling.top_p >= 1:
        return _invert(probabilities_V, sampling.seed, position)
    weights_N, tokens_N = _nucleus(probabilities_V, sampling.top_p)
    return int(tokens_N[_invert(weights_N, sampling.seed, position)])


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments."""
    key = (seed % 2**64).to_bytes(8, "little") + position.to_bytes(8, "little")
    digest = blake2b(key, digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def _nucleus(probabilities_V: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """Probabilities and tokens (N,) of the fewest most likely tokens that reach ``top_p``."""
    ordered_N, tokens_N = probabilities_V.topk(min(LIKELY_TOKENS, probabilities_V.numel()))
    if ordered_N.sum() < top_p:
        ordered_N, tokens_N = probabilities_V.sort(descending=True)
    before_N = ordered_N.cumsum(0) - ordered_N
    kept = max(1, int((before_N < top_p).sum()))
    return ordered_N[:kept], tokens_N[:kept]


def _invert(weights_N: Tensor, seed: int, position: int) -> int:
    """Index whose share of the cumulated weights contains the uniform number."""
    cumulated_N = weights_N.cumsum(0)
    target = uniform(seed, position) * float(cumulated_N[-1])
    index = int(torch.searchsorted(cumulated_N, target, right=True))
    return min(index, weights_N.numel() - 1)  # rounding may put the target at the very end
