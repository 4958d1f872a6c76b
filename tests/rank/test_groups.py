"""The grouping lattice, with ranks as threads of one process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from vertumnusd.messages import ModelInfo, RankStart
from vertumnusd.rank.groups import CollectiveError, Groups
from vertumnusd.rank.host_helper import open_store

pytestmark = pytest.mark.ranks

MODEL = ModelInfo("m", "llama", 2, 8, 2, 1, 4, 8, 10, 64, 1e-5, 1e4, True, "float32")


@pytest.fixture
def store() -> dist.TCPStore:
    return open_store("127.0.0.1")


def start(
    store: dist.TCPStore, rank: int, ranks: int, cp_degrees: tuple[int, ...],
    generation: str = "g", timeout_s: float = 20.0,
) -> RankStart:  # fmt: skip
    return RankStart(
        rank=rank, kind="prefill", incarnation=0, generation=generation, model=MODEL, tensors=[],
        weights_fd=-1, store_host="127.0.0.1", store_port=store.port, cp_degrees=cp_degrees,
        block_tokens=8, kv_blocks=8, kv_fds=tuple(range(ranks)), exchange_fds=(),
        exchange_tokens=0, own_kv_fd=-1, own_kv_blocks=0, core=-1, collective_timeout_s=timeout_s,
    )  # fmt: skip


def lattice(starts: list[RankStart]) -> list[Groups]:
    with ThreadPoolExecutor(len(starts)) as threads:
        return list(threads.map(Groups, starts))


def has(groups: Groups, degree: int, base: int) -> bool:
    try:
        return groups.group(degree, base).degree == degree
    except KeyError:
        return False


def test_a_rank_is_in_one_aligned_set_of_each_degree(store: dist.TCPStore) -> None:
    groups = lattice([start(store, rank, 4, (1, 2, 4)) for rank in range(4)])
    sets = [(2, 0), (2, 2), (4, 0)]
    member = [[has(each, *geometry) for geometry in sets] for each in groups]
    assert member == [[True, False, True]] * 2 + [[False, True, True]] * 2
    assert [each.group(4, 0).cp_rank for each in groups] == [0, 1, 2, 3]
    assert groups[3].group(2, 2).cp_rank == 1


def test_ranks_left_over_are_in_no_set_of_that_degree(store: dist.TCPStore) -> None:
    groups = lattice([start(store, rank, 6, (2, 4)) for rank in range(6)])
    assert [has(each, 4, 0) or has(each, 4, 4) for each in groups] == [True] * 4 + [False] * 2
    assert has(groups[5], 2, 4)


def test_a_barrier_waits_for_all(store: dist.TCPStore) -> None:
    here, there = lattice([start(store, rank, 2, (2,)) for rank in range(2)])
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(here.group(2, 0).barrier)
        with pytest.raises(TimeoutError):
            waiting.result(0.05)
        there.group(2, 0).barrier()
        waiting.result(20)


def test_generations_share_no_name_in_the_store(store: dist.TCPStore) -> None:
    """Else a restarted rank could meet the addresses of its peers' former selves."""
    names: set[str] = set()
    for generation in ("0", "1"):
        lattice([start(store, rank, 2, (2,), generation) for rank in range(2)])
        new = set(store.list_keys()) - names
        assert len(new) == 4  # its address and its process, of each rank
        names |= new


def test_a_peer_that_never_comes_is_an_error_after_the_timeout(store: dist.TCPStore) -> None:
    with pytest.raises(CollectiveError, match="groups of rank 0"):
        Groups(start(store, 0, 2, (2,), timeout_s=0.5))


def test_no_store_is_an_error() -> None:
    lonely = start(open_store("127.0.0.1"), 0, 2, (2,), timeout_s=0.5)
    with pytest.raises(CollectiveError):
        Groups(lonely)
