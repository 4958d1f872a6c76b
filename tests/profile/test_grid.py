"""What is measured, and in which order."""

from __future__ import annotations

from itertools import pairwise

from vertumnusd.profile.grid import Point, in_turn, lengths, points


def test_lengths_halve_from_the_longest_down_to_sixteen():
    assert lengths(256, 1) == [16, 32, 64, 128, 256]
    assert lengths(100, 1) == [25, 50, 100]
    assert lengths(64, 2) == [16, 23, 32, 45, 64]


def test_prefixes_are_whole_blocks_and_leave_a_token_to_compute():
    found = points([1], [64, 100], [0.0, 0.5, 0.99], 16)
    assert [point[1:] for point in found] == [
        (4, 96),
        (16, 48),
        (32, 32),
        (52, 48),
        (64, 0),
        (100, 0),
    ]


def test_a_prefix_too_short_for_a_block_is_not_measured_twice():
    assert points([1, 2], [16], [0.0, 0.5], 16) == [Point(1, 16, 0), Point(2, 16, 0)]


def test_a_round_visits_every_point_once_and_the_degrees_of_a_size_together():
    chosen = points([1, 2, 4], lengths(512, 1), [0.0, 0.5], 16)
    order = in_turn(chosen, 3)
    assert sorted(order) == chosen
    sizes = [point[1:] for point in order]
    changes = sum(before != after for before, after in pairwise(sizes))
    assert changes == len(set(sizes)) - 1


def test_no_degree_always_comes_first_and_rounds_differ():
    chosen = points([1, 2], lengths(512, 1), [0.0], 16)
    rounds = [in_turn(chosen, number) for number in range(2)]
    assert rounds[0] != rounds[1]
    for order in rounds:
        assert {point.degree for point in order[::2]} == {1, 2}
    size = chosen[0][1:]
    first = [next(p.degree for p in order if p[1:] == size) for order in rounds]
    assert in_turn(chosen, 0) == rounds[0]
    assert set(first) <= {1, 2}
