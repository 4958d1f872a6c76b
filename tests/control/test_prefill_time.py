"""The fit of Ê, and the non-negative least squares under it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vertumnusd.control.prefill_time import (
    Coefficients,
    Form,
    Measurement,
    PrefillTime,
    fit,
    non_negative_least_squares,
    packed_s,
)

TRUE = Coefficients(d_s=0.02, a_s=3e-6, b_s=1e-7, c_s=1e-5, alpha_s=1.3e-9)
GRID = [
    (degree, uncached, cached)
    for degree in (1, 2, 4)
    for uncached in (1, 64, 1024, 16384, 65536)
    for cached in (0, 512, 32768)
]


def measured(coefficients: Coefficients) -> list[Measurement]:
    e = PrefillTime(coefficients)
    return [Measurement(*point, e.predict_s(*point)) for point in GRID]


def test_a_degree_with_its_own_coefficients_uses_them():
    own = Coefficients(d_s=1.0, a_s=0.0, b_s=0.0, c_s=0.0, alpha_s=0.0)
    e = PrefillTime(TRUE, {1: own})
    assert e.predict_s(1, 500, 0) == 1.0
    assert e.predict_s(2, 500, 0) == PrefillTime(TRUE).predict_s(2, 500, 0)


def test_a_pack_pays_once_what_every_prefill_costs():
    """Ê of three requests at degree 2: d once, and the sums of R, P and W."""
    requests = [(100, 0), (10, 200), (1, 50)]
    times = PrefillTime(TRUE)
    together = (
        0.02
        + 3e-6 * (100 + 10 + 1)
        + 1e-7 * (0 + 200 + 50)
        + (1e-5 * (100 + 10 + 1) + 1.3e-9 * (5050 + 2055 + 51)) / 2
    )
    each = [times.predict_s(2, *request) for request in requests]
    assert packed_s(each, times.overhead_s(2)) == pytest.approx(together)


def test_exact_measurements_give_the_coefficients_back():
    fitted, error = fit(measured(TRUE))
    for name in TRUE.__struct_fields__:
        assert getattr(fitted, name) == pytest.approx(getattr(TRUE, name), rel=1e-6)
    assert error.max < 1e-9


CAUSAL = Coefficients(d_s=0.02, a_s=3e-6, b_s=1e-7, c_s=1e-5, alpha_s=1.3e-9, gamma_s=4e-10)


def test_the_causal_form_gives_all_six_back():
    fitted, error = fit(measured(CAUSAL), Form.CAUSAL)
    for name in CAUSAL.__struct_fields__:
        assert getattr(fitted, name) == pytest.approx(getattr(CAUSAL, name), rel=1e-6)
    assert error.max < 1e-9


def test_the_published_form_has_no_price_of_its_own_for_pairs_of_the_suffix():
    fitted, error = fit(measured(CAUSAL))
    assert fitted.gamma_s == 0.0
    assert error.max > 0.01


def test_pairs_of_the_suffix_cost_more_in_the_causal_form_alone():
    dearer_s = PrefillTime(CAUSAL).predict_s(2, 1000, 5000) - PrefillTime(TRUE).predict_s(
        2, 1000, 5000
    )
    assert dearer_s == pytest.approx(4e-10 * 1000 * 1001 / 2 / 2)


def test_a_coefficient_that_would_be_negative_is_zero():
    # Time falls with every cached token, which only b < 0 could express.
    falling = [
        Measurement(m.degree, m.uncached_tokens, m.cached_tokens, m.elapsed_s * factor)
        for m in measured(TRUE)
        for factor in [1 - m.cached_tokens / 100_000]
    ]
    fitted, _ = fit(falling)
    assert fitted.b_s == 0.0
    assert fitted.d_s > 0


def test_one_degree_alone_still_predicts():
    ones = [m for m in measured(TRUE) if m.degree == 1]
    fitted, error = fit(ones)
    assert error.max < 1e-9
    assert fitted.a_s + fitted.c_s == pytest.approx(TRUE.a_s + TRUE.c_s)


def test_short_prefills_count_as_much_as_long_ones():
    # One long outlier would bend an unweighted fit by seconds; weighted, it is one of 46.
    outlier = Measurement(1, 65536, 0, 3 * PrefillTime(TRUE).predict_s(1, 65536, 0))
    _, error = fit([*measured(TRUE), outlier])
    assert error.median < 0.05


def test_the_error_report_is_relative():
    # 1 s and 3 s at the same point: weights 1/t² make d = (1 + 1/3) / (1 + 1/9) = 1.2,
    # off by 0.2 of 1 s and by 1.8 of 3 s.
    _, error = fit([Measurement(1, 0, 0, 1.0), Measurement(1, 0, 0, 3.0)])
    assert error.max == pytest.approx(0.6)
    assert error.median == pytest.approx((0.2 + 0.6) / 2)


@pytest.mark.parametrize("bad", [[], [Measurement(1, 1, 0, 0.0)]])
def test_a_fit_needs_measurements_that_took_time(bad):
    with pytest.raises(ValueError, match=r"at least one|above 0"):
        fit(bad)


def test_least_squares_drops_the_negative_column():
    # Plain least squares of y = 2 − t at t = 0, 1, 2 has slope −1; with slope 0 the mean is 1.
    rows = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    x = non_negative_least_squares(rows, np.array([2.0, 1.0, 0.0]))
    assert x == pytest.approx([1.0, 0.0])


def test_least_squares_revives_a_column_that_looks_useless_alone():
    # Column 0 fits best alone, yet the exact answer is 0·first + 1·second + 2·third.
    rows = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [1.0, 0.2, 0.6]])
    x = non_negative_least_squares(rows, rows @ np.array([0.0, 1.0, 2.0]))
    assert x == pytest.approx([0.0, 1.0, 2.0])


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_least_squares_meets_the_optimality_conditions(seed):
    # Karush-Kuhn-Tucker: x ≥ 0, no column with x = 0 would lower the residual, none with x > 0 can.
    random = np.random.default_rng(seed)
    rows, target = random.normal(size=(12, 4)), random.normal(size=12)
    x = non_negative_least_squares(rows, target)
    slope = rows.T @ (rows @ x - target)
    assert (x >= 0).all()
    assert (slope > -1e-9).all()
    assert np.abs(slope[x > 0]) == pytest.approx(0, abs=1e-9)
