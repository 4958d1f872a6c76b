"""Moving blocks: the plain form against indexing; Triton's, interpreted, against the plain form."""

from __future__ import annotations

import importlib
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from vertumnus_kernels import blocks, plain

pytestmark = pytest.mark.ranks


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Triton's kernel run by Triton's interpreter, on CPU."""
    pytest.importorskip("triton", reason="triton comes with torch for CUDA")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    return importlib.reload(importlib.import_module("vertumnus_kernels.blocks_triton"))


def pool(blocks: int = 6, block_tokens: int = 4) -> torch.Tensor:
    return torch.randn(2, blocks, block_tokens, 2, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("ids", [[3], [5, 0, 2], [0, 1, 2, 3, 4, 5]])
def test_blocks_come_one_behind_the_other(ids: list[int]) -> None:
    pool_2NTHD = pool()
    kv_2SHD = blocks.gather(pool_2NTHD, ids)
    assert torch.equal(kv_2SHD, torch.cat([pool_2NTHD[:, i] for i in ids], 1))
    assert kv_2SHD.is_contiguous()


def test_what_was_scattered_is_gathered_and_nothing_else_changes() -> None:
    pool_2NTHD, before = pool(), pool()
    kv_2SHD = torch.randn(2, 8, 2, 8)
    blocks.scatter(pool_2NTHD, [4, 1], kv_2SHD)
    assert torch.equal(blocks.gather(pool_2NTHD, [4, 1]), kv_2SHD)
    assert torch.equal(pool_2NTHD[:, [0, 2, 3, 5]], before[:, [0, 2, 3, 5]])


def test_triton_moves_what_the_plain_form_moves(interpreted: ModuleType) -> None:
    assert blocks.agrees(interpreted, "cpu")
    pool_2NTHD = pool(blocks=40, block_tokens=300)  # more than a program copies at once
    ids = [39, 3, 17]
    assert torch.equal(interpreted.gather(pool_2NTHD, ids), plain.gather(pool_2NTHD, ids))


def test_a_mover_that_writes_elsewhere_is_not_chosen() -> None:
    def astray(pool_2NTHD: torch.Tensor, ids: list[int], kv_2SHD: torch.Tensor) -> None:
        plain.scatter(pool_2NTHD, [*ids[:-1], 1], kv_2SHD)

    assert blocks.agrees(plain, "cpu")
    broken: Any = SimpleNamespace(gather=plain.gather, scatter=astray)
    assert not blocks.agrees(cast(ModuleType, broken), "cpu")
