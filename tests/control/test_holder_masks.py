"""Numbers for sets of holders."""

from __future__ import annotations

from vertumnusd.control.holder_masks import NOBODY, HolderMasks


def test_equal_sets_share_a_number_and_it_is_free_after_the_last_user():
    holders = HolderMasks(ranks=4, home_ranks=1)
    first, second = holders.use(0b101), holders.use(0b101)
    assert first == second == holders.use_again(first)
    for _ in range(2):
        holders.leave(first)
    assert holders.masks[first] == 0b101
    holders.leave(first)
    assert len(holders) == 1  # that of nobody
    assert holders.use(0b11) == first


def test_nobody_has_a_number_of_its_own_for_ever():
    holders = HolderMasks(ranks=4, home_ranks=1)
    number = holders.use(0)
    assert number == NOBODY
    holders.leave(number)
    assert holders.use(0) == NOBODY


def test_a_rank_is_wiped_from_all_sets_and_their_numbers_stay_in_use():
    holders = HolderMasks(ranks=4, home_ranks=1)
    both, one, other = holders.use(0b11), holders.use(0b01), holders.use(0b10)
    holders.wipe(1)
    assert [holders.masks[number] for number in (both, one, other)] == [0b01, 0b01, 0]
    again = holders.use(0b01)
    for number in (both, one, other, again):
        holders.leave(number)
    assert len(holders) == 1
    assert holders.masks[holders.use(0b01)] == 0b01


def test_a_home_counts_when_all_its_ranks_do():
    holders = HolderMasks(ranks=4, home_ranks=2)
    number = holders.use(0b1101)
    assert holders.homes[number] == 0b0100
    holders.wipe(3)
    assert holders.homes[number] == 0
