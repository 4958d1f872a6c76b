"""Room in the homes."""

from __future__ import annotations

from scenario import settings

from vertumnusd.control.homes import Homes
from vertumnusd.messages import BlocksChanged


def homes(home_ranks: int = 1) -> Homes:
    return Homes(settings(cp_degrees=(2,), composition="2CP2", home_ranks=home_ranks, kv_blocks=10))


def report(rank: int, cached: int, pinned: int = 0) -> BlocksChanged:
    return BlocksChanged(rank, 1, b"", b"", cached, pinned, 10 - cached)


def test_what_is_reserved_is_not_promised_again():
    rooms = homes()
    rooms.reserve(0, 7)
    assert rooms.fits(0, 3)
    assert not rooms.fits(0, 4)
    assert rooms.fits(1, 10)
    rooms.release(0, 7)
    assert rooms.fits(0, 10)
    assert rooms.at_rest()


def test_a_chain_takes_its_share_of_every_rank():
    # 5 blocks on two ranks: whichever rank the rotation starts with may own 3, so 3 count on both.
    # After three such chains a rank has 1 block left, and a chain of 3 would need 2.
    rooms = homes(home_ranks=2)
    for _ in range(3):
        rooms.reserve(2, 5)
    assert rooms.fits(2, 2)
    assert not rooms.fits(2, 3)


def test_the_emptiest_home_has_least_cached_and_reserved():
    rooms = homes()
    rooms.report(report(0, cached=6))
    rooms.report(report(1, cached=2))
    rooms.reserve(1, 3)
    assert min(range(4), key=rooms.fullness) == 2
    assert [rooms.fullness(home) for home in range(3)] == [6, 5, 0]


def test_the_fullest_rank_says_how_much_a_home_can_take():
    rooms = homes(home_ranks=2)
    assert rooms.unpinned_share(2) == 10
    rooms.report(report(2, cached=5, pinned=2))
    rooms.report(report(3, cached=5, pinned=4))
    assert rooms.unpinned_share(2) == 6


def test_a_lost_rank_counts_as_empty():
    rooms = homes()
    rooms.report(report(0, cached=6, pinned=6))
    rooms.drop_rank(0)
    assert rooms.fullness(0) == 0
    assert rooms.unpinned_share(0) == 10


def test_the_snapshot_sums_over_the_ranks_of_a_home():
    rooms = homes(home_ranks=2)
    rooms.report(report(2, cached=4, pinned=2))
    rooms.report(report(3, cached=3, pinned=1))
    rooms.reserve(2, 5)
    assert rooms.snapshot()[1] == {
        "base": 2,
        "ranks": [2, 3],
        "cached_blocks": 7,
        "pinned_blocks": 3,
        "free_blocks": 13,
        "reserved_blocks": 6,
    }


def test_a_span_takes_a_share_on_every_rank_of_its_homes():
    rooms = homes()
    rooms.reserve(0, 15, ranks=2)
    assert not rooms.fits(0, 3)
    assert rooms.fits(1, 2)
    assert rooms.fits(0, 4, ranks=2)
    assert not rooms.fits(0, 5, ranks=2)
    rooms.release(0, 15, ranks=2)
    assert rooms.at_rest()


def test_a_span_is_as_full_as_its_homes_together_and_has_the_room_of_its_fullest_rank():
    rooms = homes()
    rooms.report(report(0, cached=4, pinned=1))
    rooms.report(report(1, cached=2, pinned=7))
    assert rooms.fullness(0, ranks=2) == 6
    assert rooms.unpinned_share(0, ranks=2) == 3
