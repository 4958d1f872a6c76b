"""Blocks in, pieces out: views where blocks run on, one copy where they are scattered."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec
import pytest
import torch

from vertumnusd.layout import kv_pool_bytes
from vertumnusd.messages import Kept, ModelInfo
from vertumnusd.rank.kv_pool import MAX_RUNS, KVPool, runs

pytestmark = pytest.mark.ranks

MODEL = ModelInfo("m", "llama", 2, 8, 2, 1, 4, 8, 10, 64, 1e-5, 1e4, True, "float32")
BLOCKS, BLOCK = 40, 4
LAYER = 1


@pytest.fixture
def fd() -> Iterator[int]:
    fd = os.memfd_create("pool")
    os.ftruncate(fd, kv_pool_bytes(MODEL, BLOCKS, BLOCK))
    yield fd
    os.close(fd)


@pytest.fixture
def pool(fd: int) -> KVPool:
    """Every token of layer 1 holds its own number: block · 4 + offset, keys positive."""
    pool = KVPool(fd, BLOCKS, MODEL, BLOCK)
    numbers_TH4 = torch.arange(BLOCKS * BLOCK, dtype=torch.float32).view(-1, 1, 1).expand(-1, 1, 4)
    pool.write(LAYER, 0, 0, numbers_TH4, -numbers_TH4)
    return pool


def tokens(pool: KVPool, block_ids: list[int], count: int) -> list[int]:
    pieces = pool.pieces(LAYER, block_ids, count)
    for k_THD, v_THD in pieces:
        assert torch.equal(k_THD, -v_THD)
    return [int(token) for k_THD, _ in pieces for token in k_THD[:, 0, 0]]


def test_runs_of_ids() -> None:
    assert runs([]) == []
    assert runs([7]) == [(7, 1)]
    assert runs([3, 4, 5, 9, 8, 7, 1, 2]) == [(3, 3), (9, 1), (8, 1), (7, 1), (1, 2)]


def test_a_run_is_one_view_of_the_pool(pool: KVPool) -> None:
    [(k_THD, v_THD)] = pool.pieces(LAYER, [5, 6, 7], 10)
    assert k_THD[:, 0, 0].tolist() == [20, 21, 22, 23, 24, 25, 26, 27, 28, 29]
    pool.kv_2NTHD[LAYER][:, 5] = 0.5
    assert k_THD[0, 0, 0] == v_THD[0, 0, 0] == 0.5


def test_the_count_trims_the_last_block_of_several_runs(pool: KVPool) -> None:
    assert tokens(pool, [9, 2, 3], 11) == [36, 37, 38, 39, 8, 9, 10, 11, 12, 13, 14]


def test_scattered_blocks_come_as_one_copy(pool: KVPool) -> None:
    ids = list(range(1, 2 * MAX_RUNS + 3, 2))
    [(k_THD, _)] = pool.pieces(LAYER, ids, len(ids) * BLOCK - 1)
    wanted = [block * BLOCK + offset for block in ids for offset in range(BLOCK)][:-1]
    assert k_THD[:, 0, 0].tolist() == wanted


def test_a_write_may_begin_inside_a_block_and_run_over_several(pool: KVPool) -> None:
    new_TH4 = torch.full((6, 1, 4), 1000.0)
    pool.write(LAYER, 3, 3, new_TH4, -new_TH4)
    assert tokens(pool, [3, 4, 5], 12) == [12, 13, 14, *[1000] * 6, 21, 22, 23]


def test_blocks_taken_by_steps_go_into_consecutive_ones(pool: KVPool) -> None:
    source_NT1D = torch.arange(24.0).view(6, 4, 1, 1).expand(6, 4, 1, 4)
    pool.write_blocks(LAYER, 30, source_NT1D[1::2], -source_NT1D[1::2])
    assert tokens(pool, [30, 31, 32], 12) == [4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23]


def test_another_mapping_sees_what_was_written(fd: int, pool: KVPool) -> None:
    assert tokens(KVPool(fd, BLOCKS, MODEL, BLOCK), [39], 4) == [156, 157, 158, 159]


def test_layers_are_apart(pool: KVPool) -> None:
    assert not pool.kv_2NTHD[0].any()


class Uneven(ModelInfo, frozen=True):
    """A model whose first layer keeps half as much as its second."""

    def kept(self, layer: int) -> Kept:
        return Kept(1 + layer, self.head_dim, self.dtype)


def test_each_layer_keeps_what_the_model_says() -> None:
    model = Uneven(*msgspec.structs.astuple(MODEL))
    fd = os.memfd_create("pool")
    os.ftruncate(fd, kv_pool_bytes(model, BLOCKS, BLOCK))
    pool = KVPool(fd, BLOCKS, model, BLOCK)
    for layer in (0, 1):
        kv_TH4 = torch.full((BLOCKS * BLOCK, 1 + layer, 4), 1.0 + layer)
        pool.write(layer, 0, 0, kv_TH4, kv_TH4)
    assert [set(kv_2NTHD.unique().tolist()) for kv_2NTHD in pool.kv_2NTHD] == [{1.0}, {2.0}]
    assert os.fstat(fd).st_size == sum(kv_2NTHD.nbytes for kv_2NTHD in pool.kv_2NTHD)
    os.close(fd)
