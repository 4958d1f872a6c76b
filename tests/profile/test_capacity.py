"""κ_C from real service times and a virtual queue."""

from __future__ import annotations

import pytest

from vertumnusd.control.settings import SloClass
from vertumnusd.profile.capacity import HIGHEST_LOAD, Served, attainment, capacity_share

SLO = (SloClass(1000, 1.0), SloClass(float("inf"), 10.0))
SHORT = Served(100, 0.1, 0.1)


def test_a_loose_limit_is_met_up_to_full_load_and_not_beyond():
    loose = (SloClass(float("inf"), 4.0),)
    assert capacity_share([SHORT], 1, loose) == pytest.approx(1.0, abs=0.03)


def test_a_tight_limit_leaves_room_for_less():
    tight = (SloClass(float("inf"), 0.2),)
    assert 0 < capacity_share([SHORT], 1, tight) < 0.6 * capacity_share([SHORT], 1, SLO)


def test_two_workers_serve_more_each_than_one():
    tight = (SloClass(float("inf"), 0.2),)
    assert capacity_share([SHORT], 2, tight) > 1.1 * capacity_share([SHORT], 1, tight)


def test_nothing_is_served_in_time_if_the_service_alone_is_too_long():
    assert capacity_share([Served(100, 2.0, 2.0)], 1, SLO) == 0.0


def test_capacity_counts_predicted_seconds():
    # Every prefill takes three quarters of what was predicted: a third more of that fits.
    quick = Served(100, 0.1, 0.075)
    loose = (SloClass(float("inf"), 3.0),)
    assert capacity_share([quick], 1, loose) == pytest.approx(4 / 3, abs=0.04)


def test_attainment_falls_with_the_load():
    mix = [SHORT, Served(2000, 3.0, 3.0)]
    shares = [attainment(mix, 1, SLO, load) for load in (0.05, 0.5, 0.95, HIGHEST_LOAD)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.9
    assert shares[-1] < 0.1


def test_attainment_is_weighted_by_tokens():
    # Nine of ten requests are in time, but half of the tokens are in the tenth.
    mix = [Served(100, 0.001, 0.001)] * 9 + [Served(900, 2.0, 2.0)]
    assert attainment(mix, 1, SLO, 1e-3) == pytest.approx(0.5, abs=0.03)
