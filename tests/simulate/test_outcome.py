from __future__ import annotations

import numpy as np
import pytest

from vertumnusd.control.settings import SLO
from vertumnusd.simulate.outcome import SLO_TIGHT, Outcome, attainment, summarise
from vertumnusd.simulate.report import interval


def outcome(tokens, ttft_s, cached=None):
    made = Outcome.empty("x", 4, tokens)
    made.ttft_s[:] = ttft_s
    made.cached_tokens[:] = cached or [0] * len(tokens)
    made.ended, made.span_s = len(tokens), 10.0
    return made


def test_slo_attainment_is_weighted_by_tokens_against_the_limit_of_the_length():
    # 1 s below 8192 tokens, 5 s below 32768, else 10 s; half of it each when tight
    made = outcome([8191, 8192, 32767, 32768], [1.1, 4.9, 5.1, 10.0])
    assert attainment(made, SLO) == pytest.approx((8192 + 32768) / 81918)
    assert attainment(made, SLO_TIGHT) == 0.0
    made.ttft_s[:] = [0.5, 2.0, 2.0, 5.1]
    assert attainment(made, SLO_TIGHT) == pytest.approx((81918 - 32768) / 81918)


def test_the_figures_of_a_run():
    made = outcome([1000, 40_000], [1.0, 3.0], cached=[500, 0])
    made.busy_gpu_s = 20.0
    summary = summarise(made)
    assert (summary.mean_s, summary.p50_s, summary.requests) == (2.0, 2.0, 2)
    assert (summary.short_mean_s, summary.long_mean_s) == (1.0, 3.0)
    assert summary.hit_rate == pytest.approx(500 / 41_000)
    assert summary.utilisation == pytest.approx(20 / (4 * 10))


def test_a_refused_request_counts_as_a_missed_slo_but_in_no_mean():
    summary = summarise(outcome([1000, 3000], [0.5, np.inf]))
    assert (summary.mean_s, summary.refused) == (0.5, 1)
    assert summary.slo_loose == pytest.approx(0.25)


@pytest.mark.parametrize(("ttft_s", "ended"), [([1.0, -1.0], 2), ([1.0, 1.0], 3), ([1.0, 1.0], 1)])
def test_a_run_with_a_request_that_did_not_end_once_is_refused(ttft_s, ended):
    made = outcome([100, 100], ttft_s)
    made.ended = ended
    with pytest.raises(AssertionError):
        summarise(made)


def test_an_interval_over_seeds():
    # mean 2, standard deviation 1; t = 4.30 for two degrees of freedom
    mean, half = interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.30 / 3**0.5)
    assert interval([7.0]) == (7.0, 0.0)
