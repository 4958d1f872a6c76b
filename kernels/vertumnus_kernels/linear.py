"""Matrix product with a weight, by whatever is fastest and right on this machine.

Shapes: T rows, I inputs, O outputs. The weight is (out, in), as checkpoints have it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from vertumnus_kernels import onednn, plain

Linear = Callable[[Tensor, Tensor], Tensor]

# A layer's products and what lies between them are done for so many rows at a time: what one
# writes is still in the cache when the next reads it.
SLAB_ROWS = 256


def linear(x_TI: Tensor, w_OI: Tensor) -> Tensor:
    """y_TO = x_TI · w_OIᵀ, in the dtype of both."""
    return implementation()(x_TI.contiguous(), w_OI)


def slabs(rows: int) -> Iterator[slice]:
    """The rows in slabs; the last one may be smaller."""
    for start in range(0, rows, SLAB_ROWS):
        yield slice(start, min(start + SLAB_ROWS, rows))


@functools.cache
def implementation() -> Linear:
    """The product of this process, chosen once."""
    return onednn.linear if agrees(onednn.linear) else plain.linear


def agrees(candidate: Linear) -> bool:
    noise = torch.Generator().manual_seed(0)
    x_TI, w_OI = (
        torch.randn(rows, 96, generator=noise, device="cpu").to(torch.get_default_device())
        for rows in (70, 48)
    )
    try:
        for rows in (0, 1, 70):
            if not torch.allclose(
                candidate(x_TI[:rows], w_OI), plain.linear(x_TI[:rows], w_OI), atol=1e-4
            ):
                return False
    except (RuntimeError, AttributeError, TypeError):
        return False
    return True
