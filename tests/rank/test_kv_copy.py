"""Blocks from the pools of other ranks into our own: all of each, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import torch
from torch import Tensor

from vertumnusd.layout import kv_pool_bytes
from vertumnusd.messages import ModelInfo
from vertumnusd.rank import kv_copy
from vertumnusd.rank.kv_copy import PoolCopier, Stretch, stretches
from vertumnusd.rank.kv_pool import KVPool
from vertumnusd.rank.transfer import BlockCopy

pytestmark = pytest.mark.ranks

MODEL = ModelInfo("m", "llama", 3, 8, 2, 1, 4, 8, 10, 64, 1e-5, 1e4, True, "float32")
BLOCKS, BLOCK, OWN = 12, 4, 2
COPIES = [BlockCopy(0, n, n + 3) for n in range(4)] + [BlockCopy(1, 9, 0), BlockCopy(0, 7, 11)]


@pytest.fixture
def pools() -> Iterator[list[KVPool]]:
    """Of three ranks; no two numbers in them are alike."""
    with ExitStack() as stack:
        found = []
        for rank in range(3):
            fd = os.memfd_create("pool")
            stack.callback(os.close, fd)
            os.ftruncate(fd, kv_pool_bytes(MODEL, BLOCKS, BLOCK))
            found.append(KVPool(fd, BLOCKS, MODEL, BLOCK))
            for layer, kv_2NTHD in enumerate(found[rank].kv_2NTHD):
                numbers = torch.arange(kv_2NTHD.numel(), dtype=kv_2NTHD.dtype)
                kv_2NTHD.copy_((numbers + 1000 * (10 * rank + layer)).view_as(kv_2NTHD))
        yield found


def wanted(pools: list[KVPool]) -> list[Tensor]:
    """Our own pool, layer by layer, as it is to be when all is copied."""
    own = [kv_2NTHD.clone() for kv_2NTHD in pools[OWN].kv_2NTHD]
    for rank, source, target in COPIES:
        for layer, kv_2NTHD in enumerate(own):
            kv_2NTHD[:, target] = pools[rank].kv_2NTHD[layer][:, source]
    return own


def copied_right(pools: list[KVPool]) -> bool:
    own = wanted(pools)
    copied = sum(PoolCopier(pools, OWN).pieces(COPIES))
    same = all(map(torch.equal, own, pools[OWN].kv_2NTHD))
    return same and copied == len(COPIES) * BLOCK * MODEL.kv_bytes_per_token


@pytest.mark.parametrize("piece_bytes", [1, 400, kv_copy.PIECE_BYTES])
def test_blocks_are_copied_in_every_layer_and_others_stay(
    pools: list[KVPool], piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_copy, "PIECE_BYTES", piece_bytes)
    assert copied_right(pools)


def test_a_copy_that_leaves_a_layer_out_is_noticed(
    pools: list[KVPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_copy, "enumerate", lambda of: list(enumerate(of))[1:], raising=False)
    assert not copied_right(pools)


def test_what_lies_in_a_row_on_both_sides_is_one_stretch() -> None:
    assert stretches(COPIES) == [Stretch(0, 0, 3, 4), Stretch(0, 7, 11, 1), Stretch(1, 9, 0, 1)]


def test_a_block_that_a_pool_has_not_is_refused(pools: list[KVPool]) -> None:
    with pytest.raises(ValueError, match=f"block {BLOCKS} of a pool of {BLOCKS}"):
        list(PoolCopier(pools, OWN).pieces([BlockCopy(0, BLOCKS, 0)]))
