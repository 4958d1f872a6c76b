"""The lengths at which a cut of tokens can go wrong, and prompts of them.

With degree 4 there are 8 chunks; a block has 8 tokens.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

VOCAB = 256

# (L, P): tokens of the prompt, and how many of them are cached.
BORDERS = [
    pytest.param(1, 0, id="one-token"),
    pytest.param(3, 0, id="fewer-tokens-than-ranks"),
    pytest.param(7, 0, id="fewer-tokens-than-chunks"),
    pytest.param(37, 0, id="unequal-chunks"),
    pytest.param(64, 0, id="cold-at-a-block-border"),
    pytest.param(65, 64, id="one-token-behind-a-prefix"),
    pytest.param(301, 296, id="few-tokens-behind-a-long-prefix"),
    pytest.param(104, 80, id="hit-ending-at-a-block-border"),
    pytest.param(117, 8, id="hit-of-one-block"),
]


def prompt(length: int, seed: int = 0) -> list[int]:
    noise = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, (length,), generator=noise).tolist()


def error(logits: np.ndarray, oracle: np.ndarray) -> float:
    """The largest difference, relative to the largest |logit|."""
    return float(np.abs(logits - oracle).max() / np.abs(oracle).max())
