"""What is believed of a machine that takes longer than its profile says."""

from __future__ import annotations

import pytest

from vertumnusd.control.paces import HALF_LIFE_WINDOWS, LATEST_MIN, Paces

WINDOW_S = 10.0


def paces(*seen: tuple[float, int, float]) -> Paces:
    """``seen``: when, the degree, and how often its predicted second was measured there."""
    found = Paces(WINDOW_S)
    for at_s, degree, pace in seen:
        for _ in range(LATEST_MIN):
            found.observe(at_s, degree, pace * 2.0, 2.0)
    return found


def test_until_enough_was_measured_the_profile_is_believed():
    found = Paces(WINDOW_S)
    for _ in range(LATEST_MIN - 1):
        found.observe(0.0, 1, 3.0, 1.0)
    assert found.of(0.0, (1, 2)) == {1: 1.0, 2: 1.0}
    found.observe(0.0, 1, 3.0, 1.0)
    assert found.of(0.0, (1, 2)) == pytest.approx({1: 3.0, 2: 3.0})


def test_a_degree_never_seen_is_like_the_nearest_one():
    assert paces((0, 1, 2.0), (0, 4, 3.0)).of(0.0, (1, 2, 4, 8)) == pytest.approx(
        {1: 2.0, 2: 2.0, 4: 3.0, 8: 3.0}
    )


def test_a_few_that_took_very_long_change_nothing():
    found = paces((0, 1, 2.0), (1, 1, 2.0))
    found.observe(2.0, 1, 500.0, 1.0)
    found.observe(2.0, 1, 500.0, 1.0)
    assert found.of(2.0, (1,)) == pytest.approx({1: 2.0})


def test_what_was_measured_in_the_last_window_outdoes_what_was_before():
    found = paces((0, 1, 2.0), (1, 1, 2.0), (2, 1, 2.0), (30, 1, 1.0))
    assert found.of(30.0, (1,)) == pytest.approx({1: 1.0})


def test_what_is_known_of_a_degree_that_does_not_serve_fades():
    age_s = HALF_LIFE_WINDOWS * WINDOW_S
    found = paces((0, 4, 4.0), (age_s, 1, 1.0))
    assert found.of(age_s, (4,)) == pytest.approx({4: 2.0})
    assert found.of(9 * age_s, (4,))[4] == pytest.approx(1.0, rel=0.01)


def test_while_nothing_is_asked_nothing_fades():
    assert paces((0, 4, 4.0)).of(1e6, (1, 4)) == pytest.approx({1: 4.0, 4: 4.0})


@pytest.mark.parametrize("times_s", [(0.0, 1.0), (1.0, 0.0)])
def test_a_prefill_without_a_time_says_nothing(times_s):
    found = Paces(WINDOW_S)
    for _ in range(LATEST_MIN):
        found.observe(0.0, 1, *times_s)
    assert found.of(0.0, (1,)) == {1: 1.0}
