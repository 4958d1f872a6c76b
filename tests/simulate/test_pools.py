from __future__ import annotations

from collections import OrderedDict
from random import Random

import pytest

from vertumnusd.simulate.names import BlockNames
from vertumnusd.simulate.pools import Pool
from vertumnusd.simulate.ranks import VirtualHome, VirtualRank


def test_children_are_evicted_before_their_parents():
    pool = Pool[str](3)
    pool.use("abc")
    assert pool.use("x") == ([0], ["c"])
    assert pool.leading("abc") == 2


def test_what_was_used_longest_ago_is_evicted_first():
    pool = Pool[str](3)
    pool.use("a")
    pool.use("b")
    pool.use("c")
    pool.use("a")
    assert pool.use("d") == ([0], ["b"])


def test_a_chain_longer_than_the_pool_keeps_its_beginning():
    pool = Pool[str](3)
    assert pool.use("abcde") == ([0, 1, 2], [])
    assert pool.leading("abcde") == 3


@pytest.mark.parametrize("seed", range(3))
def test_a_pool_does_what_a_list_in_order_of_use_would(seed):
    random, capacity = Random(seed), 12
    pool, held = Pool[str](capacity), OrderedDict[str, None]()
    for _ in range(2000):
        root = random.randrange(4)
        chain = [f"{root}.{depth}" for depth in range(random.randrange(16))]
        fresh = [n for n, block in enumerate(chain[:capacity]) if block not in held]
        for block in reversed(chain[:capacity]):
            held[block] = None
            held.move_to_end(block)
        evicted = [held.popitem(last=False)[0] for _ in range(len(held) - capacity)]
        assert pool.use(chain) == (fresh, evicted)
        if held and random.random() < 0.1:
            block = random.choice(list(held))
            assert pool.discard(block)
            assert not pool.discard(block)
            del held[block]
        assert set(pool.blocks()) == set(held)
    assert len(pool) == len(held)


@pytest.mark.parametrize("first", range(4))
def test_a_home_has_what_its_ranks_have_without_a_gap(first):
    # four chains, so that whichever rank a chain's turn begins with occurs
    names = BlockNames()
    ranks = [VirtualRank(rank, 8) for rank in range(2)]
    home = VirtualHome(ranks)
    chain = names.chain([first, 11, 12, 13, 14])
    home.use(chain)
    assert home.leading(chain) == 5
    assert {len(rank.pool) for rank in ranks} == {2, 3}
    home.reclaim([chain[3]])
    assert home.leading(chain) == 3
    assert home.leading(chain[:2]) == 2


def test_reports_name_parents_and_count_up():
    names = BlockNames()
    rank = VirtualRank(7, 2)
    a, b, c = names.chain([1, 2, 3])
    first = rank.use([a, b], [bytes(16), a])
    assert (first.rank, first.version, first.cached_blocks, first.free_blocks) == (7, 1, 2, 0)
    assert first.stored == bytes(16) + a + a + b
    assert rank.use([a, b], [bytes(16), a]) is None
    second = rank.use([c], [b])
    assert (second.version, second.stored, second.evicted) == (2, b + c, b)
