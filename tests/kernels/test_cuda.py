"""The forms for CUDA against the plain ones, on a CUDA device; all skip where there is none."""

from __future__ import annotations

import importlib

import pytest
import torch
from vertumnus_kernels import attention, blocks, plain

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SIZES = [(1, 1), (1, 700), (40, 800), (129, 257), (300, 1111)]
FORMS = list(attention.CHOICES["cuda"].items())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("queries", "keys"), [(1, 1), (1, 700), (40, 800), (129, 257), (300, 1111)]
)
@pytest.mark.parametrize(("name", "module"), FORMS)
def test_attention_equals_the_plain_form(
    name: str, module: str, queries: int, keys: int, causal: bool
) -> None:
    if name == "flash-attn":
        pytest.importorskip("flash_attn")
    attend = importlib.import_module(f"vertumnus_kernels.{module}").attend
    noise = torch.Generator().manual_seed(keys)
    fused_SJD = torch.randn(keys, 12, 128, generator=noise).to("cuda", torch.bfloat16)
    q_SHD, k_SKD, v_SKD = fused_SJD.split((8, 2, 2), dim=1)
    case = (q_SHD[-queries:], k_SKD, v_SKD, causal, 128**-0.5)
    for found, wanted in zip(attend(*case), plain.attend(*case), strict=True):
        torch.testing.assert_close(found, wanted, atol=2e-2, rtol=2e-2)


def test_a_form_for_cuda_is_chosen_there() -> None:
    assert attention.implementation("cuda").name in attention.CHOICES["cuda"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_blocks_move_as_in_the_plain_form(dtype: torch.dtype) -> None:
    assert blocks.implementation("cuda").__name__ == "vertumnus_kernels.blocks_triton"
    pool_2NTHD = torch.randn(2, 300, 16, 4, 128, device="cuda").to(dtype)
    ids = torch.randperm(300)[:100].tolist()
    moved_2SHD = blocks.gather(pool_2NTHD, ids)
    assert torch.equal(moved_2SHD, plain.gather(pool_2NTHD, ids))
    twin = pool_2NTHD.clone()
    blocks.scatter(pool_2NTHD, ids[::-1], moved_2SHD)
    plain.scatter(twin, ids[::-1], moved_2SHD)
    assert torch.equal(pool_2NTHD, twin)
