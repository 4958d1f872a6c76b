"""Classes, percentiles and what is shown; the weighting is in test_paper.py."""

from __future__ import annotations

import json

import pytest

from vertumnusd.control.settings import SLO, SloClass
from vertumnusd.control.slo import CLASS_WIDTH, SloAccount


def test_an_input_at_the_border_is_in_the_longer_class():
    account = SloAccount([SloClass(100, 1.0), SloClass(float("inf"), 10.0)])
    account.record(99, 0, 5.0)
    assert account.attainment == 0
    account.record(100, 0, 5.0)
    assert account.attainment == pytest.approx(100 / 199)


def test_a_time_of_exactly_the_limit_meets_it():
    account = SloAccount([SloClass(100, 1.0)])
    account.record(10, 0, 1.0)
    assert account.attainment == 1


def test_percentiles_are_exact_to_the_width_of_their_class():
    account = SloAccount(SLO)
    for n in range(1, 1001):
        account.record(1, 0, n / 100)
    for share in (0.5, 0.9, 0.99):
        assert 10 * share <= account.percentile_s(share) <= 10 * share * CLASS_WIDTH


def test_times_beyond_the_histogram_are_counted_at_its_ends():
    account = SloAccount(SLO)
    account.record(1, 0, 0.0)
    assert 0 < account.percentile_s(0.99) <= 0.001
    account.record(1, 0, 1e9)
    assert account.percentile_s(0.99) > 1e5


def test_before_the_first_request_nothing_is_missed():
    account = SloAccount(SLO)
    assert (account.attainment, account.hit_rate, account.percentile_s(0.99)) == (1.0, 0.0, 0.0)


def test_what_is_shown_is_json_also_for_a_class_without_limit():
    view = SloAccount(SLO).snapshot()
    assert json.loads(json.dumps(view, allow_nan=False)) == view
    assert [c["below_tokens"] for c in view["classes"]] == [8192, 32768, None]
