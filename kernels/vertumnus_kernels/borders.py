"""Where a sequence begins and ends, as varlen attention on CUDA wants to be told."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


@functools.lru_cache(maxsize=1024)
def borders(tokens: int, device: torch.device) -> Tensor:
    """(0, tokens) in int32, on the device; kept, as all layers of a step ask for the same ones."""
    return torch.tensor([0, tokens], dtype=torch.int32, device=device)
