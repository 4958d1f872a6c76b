"""The product with a weight: against plain torch, and the slabs it is done in."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from vertumnus_kernels import linear, onednn, plain

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 64, 100, 255])
def test_equals_plain_torch(rows: int) -> None:
    noise = torch.Generator().manual_seed(rows)
    x_TI, w_OI = torch.randn(rows, 80, generator=noise), torch.randn(50, 80, generator=noise)
    torch.testing.assert_close(
        onednn.linear(x_TI, w_OI), plain.linear(x_TI, w_OI), atol=1e-4, rtol=0
    )


def test_takes_strided_rows_and_bfloat16() -> None:
    noise = torch.Generator().manual_seed(1)
    wide_TI, w_OI = torch.randn(20, 160, generator=noise), torch.randn(50, 80, generator=noise)
    x_TI = wide_TI[:, ::2]
    torch.testing.assert_close(
        linear.linear(x_TI, w_OI), plain.linear(x_TI, w_OI), atol=1e-4, rtol=0
    )
    half_TO = linear.linear(x_TI.bfloat16(), w_OI.bfloat16())
    assert half_TO.dtype == torch.bfloat16
    torch.testing.assert_close(half_TO.float(), plain.linear(x_TI, w_OI), atol=0.3, rtol=2e-2)


@pytest.mark.parametrize("rows", [0, 1, 255, 256, 257, 1000])
def test_slabs_cover_all_rows_in_order(rows: int) -> None:
    covered = [row for slab in linear.slabs(rows) for row in range(slab.start, slab.stop)]
    assert covered == list(range(rows))


def test_a_product_that_is_off_is_not_chosen() -> None:
    def zero(x_TI: Tensor, w_OI: Tensor) -> Tensor:
        return torch.zeros(len(x_TI), len(w_OI))

    assert linear.agrees(plain.linear)
    assert not linear.agrees(zero)
