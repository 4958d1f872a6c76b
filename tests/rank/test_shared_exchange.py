"""The shared exchange without processes: two ends in one, with a barrier that only counts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import cast

import pytest
import torch

from vertumnusd.layout import exchange_bytes
from vertumnusd.messages import ModelInfo
from vertumnusd.rank.groups import Group
from vertumnusd.rank.shared_exchange import SharedExchange

pytestmark = pytest.mark.ranks

MODEL = ModelInfo("m", "llama", 2, 8, 2, 1, 4, 8, 10, 64, 1e-5, 1e4, True, "float32")
TOKENS = 16
LAYER = 1


class CountingGroup:
    degree = 2

    def __init__(self, base: int) -> None:
        self.base = base
        self.barriers = 0

    def barrier(self) -> None:
        self.barriers += 1


@pytest.fixture
def fds() -> Iterator[list[int]]:
    fds = [os.memfd_create("exchange") for _ in range(4)]
    for fd in fds:
        os.ftruncate(fd, exchange_bytes(MODEL, TOKENS))
    yield fds
    for fd in fds:
        os.close(fd)


def seat(fds: list[int], base: int = 0) -> tuple[SharedExchange, CountingGroup]:
    exchange, group = (
        SharedExchange(fds, {}, MODEL, TOKENS, lambda group: group.barrier()),
        CountingGroup(base),
    )
    exchange.adopt(cast(Group, group))
    return exchange, group


def kv(value: float, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((tokens, 1, 4), value), torch.full((tokens, 1, 4), -value)


def test_each_rank_reads_what_both_wrote(fds: list[int]) -> None:
    (a, _), (b, _) = seat(fds), seat(fds)
    a.put(LAYER, 0, *kv(1, 3))
    b.put(LAYER, 3, *kv(2, 2))
    for rank in (a, b):
        k_SHD, v_SHD = rank.meet(LAYER, 5, ())
        assert k_SHD[:, 0, 0].tolist() == [1, 1, 1, 2, 2]
        assert v_SHD[:, 0, 0].tolist() == [-1, -1, -1, -2, -2]


def test_one_barrier_a_meeting(fds: list[int]) -> None:
    exchange, group = seat(fds)
    for _ in range(3):
        exchange.put(LAYER, 0, *kv(1, 1))
        exchange.meet(LAYER, 1, ())
    assert group.barriers == exchange.turn == 3


def test_a_peer_one_turn_ahead_does_not_overwrite_what_is_being_read(fds: list[int]) -> None:
    (slow, _), (fast, _) = seat(fds), seat(fds)
    slow.put(LAYER, 0, *kv(1, 4))
    read, _ = slow.meet(LAYER, 4, ())
    fast.meet(LAYER, 4, ())
    fast.put(LAYER, 0, *kv(9, 4))  # the next turn, while ``slow`` still reads this one
    assert read[:, 0, 0].tolist() == [1, 1, 1, 1]


def test_workers_side_by_side_use_areas_of_their_own(fds: list[int]) -> None:
    (left, _), (right, _) = seat(fds, base=0), seat(fds, base=2)
    left.put(LAYER, 0, *kv(1, 2))
    right.put(LAYER, 0, *kv(2, 2))
    assert left.meet(LAYER, 2, ())[0][:, 0, 0].tolist() == [1, 1]
    assert right.meet(LAYER, 2, ())[0][:, 0, 0].tolist() == [2, 2]


def test_a_new_geometry_starts_at_turn_zero_on_every_rank(fds: list[int]) -> None:
    (old, group), (new, _) = seat(fds), seat(fds)
    old.meet(LAYER, 0, ())
    old.adopt(cast(Group, group))
    old.put(LAYER, 0, *kv(3, 1))
    assert new.meet(LAYER, 1, ())[0][0, 0, 0] == 3
