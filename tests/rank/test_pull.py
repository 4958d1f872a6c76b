"""Pull: every block of the chain lands where the request has it, in few copies."""

from __future__ import annotations

import os
import random
from array import array
from collections.abc import Iterator

import pytest
import torch

from vertumnusd.layout import kv_pool_bytes, owned_blocks, owner
from vertumnusd.messages import ModelInfo, Pull
from vertumnusd.rank.kv_pool import KVPool
from vertumnusd.rank.pull import Run, _by_block, _by_run, copy, runs

pytestmark = pytest.mark.ranks

MODEL = ModelInfo(
    name="m",
    architecture="llama",
    layers=3,
    hidden=8,
    heads=2,
    kv_heads=1,
    head_dim=4,
    intermediate=8,
    vocab=8,
    context_tokens=64,
    norm_eps=1e-5,
    rope_theta=1e4,
    tied_embeddings=True,
    dtype="float32",
)


@pytest.fixture
def pools() -> Iterator[list[KVPool]]:
    """Three pools of 16 blocks; no two floats of the first two are equal, the last is empty."""
    found, fds = [], []
    for number in range(3):
        fds.append(os.memfd_create("pool"))
        os.ftruncate(fds[-1], kv_pool_bytes(MODEL, 16, 2))
        pool = KVPool(fds[-1], 16, MODEL, 2)
        if number < 2:
            for layer, kv_2NTHD in enumerate(pool.kv_2NTHD):
                kv_2NTHD.copy_(torch.arange(kv_2NTHD.numel()).view_as(kv_2NTHD))
                kv_2NTHD.add_(number * 100_000 + layer * 10_000)
        found.append(pool)
    yield found
    for fd in fds:
        os.close(fd)


def pull(
    block_ids: list[int], home_ranks: int = 1, rotation: int = 0, first: int = 0, last: int = 3
) -> Pull:
    return Pull("r", first, last, array("I", block_ids).tobytes(), 0, home_ranks, rotation)


@pytest.mark.parametrize("home_ranks", [1, 2])
@pytest.mark.parametrize("rotation", [0, 1])
@pytest.mark.parametrize("seed", range(6))
def test_blocks_land_where_they_belong(
    pools: list[KVPool], home_ranks: int, rotation: int, seed: int
) -> None:
    dice = random.Random(seed)
    chain = dice.sample(range(16), 9) if seed else list(range(9))
    target = dice.sample(range(16), 10) if seed % 2 else list(range(3, 13))
    turn = rotation % home_ranks
    copied = copy(pull(chain, home_ranks, turn, first=1), target, pools[:2], pools[2])
    own = pools[2].kv_2NTHD
    for block, source in enumerate(chain):
        taken = pools[owner(block, 0, turn, home_ranks)].kv_2NTHD
        for layer in (1, 2):
            assert torch.equal(own[layer][:, target[block]], taken[layer][:, source])
    assert copied == 2 * 9 * own[0][:, 0].nbytes
    # And nothing else was written.
    assert sum(int(kv_2NTHD.count_nonzero()) * 4 for kv_2NTHD in own) <= copied


def test_runs_on_both_sides_make_one_copy() -> None:
    assert runs(pull([4, 5, 6]), [1, 2, 3]) == [Run(0, range(4, 7), range(1, 4))]


def test_a_home_of_two_makes_one_strided_copy_each() -> None:
    ids = {rank: iter(range(8)) for rank in (0, 1)}
    chain = [next(ids[owner(block, 0, 1, 2)]) for block in range(7)]
    assert runs(pull(chain, 2, rotation=1), list(range(2, 9))) == [
        Run(0, range(3), range(3, 8, 2)),
        Run(1, range(4), range(2, 9, 2)),
    ]
    assert len(owned_blocks(1, 7, 0, 1, 2)) == 4


def test_a_break_on_either_side_begins_another_copy() -> None:
    assert runs(pull([4, 5, 7]), [1, 2, 3]) == [
        Run(0, range(4, 6), range(1, 3)),
        Run(0, range(7, 8), range(3, 4)),
    ]
    assert runs(pull([4, 5, 6]), [9, 2, 3]) == [
        Run(0, range(4, 5), range(9, 10)),
        Run(0, range(5, 7), range(2, 4)),
    ]
    assert runs(pull([4, 5, 6]), [1, 2, 4]) == [
        Run(0, range(4, 6), range(1, 3)),
        Run(0, range(6, 7), range(4, 5)),
    ]


def test_blocks_of_two_ranks_are_two_copies_even_if_their_ids_continue() -> None:
    assert runs(pull([0, 2, 1, 3], 2), [0, 2, 1, 3]) == [
        Run(0, range(2), range(2)),
        Run(1, range(2, 4), range(2, 4)),
    ]


def test_by_block_moves_what_by_run_moves() -> None:
    """The way between devices, here on CPU."""
    noise = torch.Generator().manual_seed(0)
    source_2NTHD = torch.randn(2, 9, 4, 1, 4, generator=noise)
    moved = [Run(0, range(2, 5), range(0, 6, 2)), Run(0, range(8, 9), range(7, 8))]
    twins = torch.zeros(2, 8, 4, 1, 4), torch.zeros(2, 8, 4, 1, 4)
    _by_run(moved, source_2NTHD, twins[0])
    _by_block(moved, source_2NTHD, twins[1])
    assert torch.equal(*twins)
    assert torch.equal(twins[0][:, 4], source_2NTHD[:, 4])
