"""Which form of Ê is chosen, and how it is judged."""

from __future__ import annotations

import pytest

from vertumnusd.control.prefill_time import Coefficients, Form, Measurement, PrefillTime
from vertumnusd.profile.fitting import CANDIDATES, Candidate, choose, judge
from vertumnusd.profile.grid import lengths, points

ONE = Coefficients(d_s=0.02, a_s=3e-5, b_s=1e-6, c_s=1e-4, alpha_s=1e-8)
TWO = Coefficients(d_s=0.05, a_s=9e-5, b_s=4e-6, c_s=1e-4, alpha_s=1e-8)
CAUSAL = Coefficients(d_s=0.02, a_s=3e-5, b_s=1e-6, c_s=1e-4, alpha_s=1e-8, gamma_s=2e-8)
GRID = points([1, 2], lengths(8192, 1), [0.0, 0.5, 0.9], 16)


def measured(prefill_time: PrefillTime) -> list[Measurement]:
    return [Measurement(*point, prefill_time.predict_s(*point)) for point in GRID]


@pytest.mark.parametrize(
    ("truth", "chosen"),
    [
        (PrefillTime(ONE), Candidate(Form.PUBLISHED, False)),
        (PrefillTime(CAUSAL), Candidate(Form.CAUSAL, False)),
        (PrefillTime(ONE, {2: TWO}), Candidate(Form.PUBLISHED, True)),
        (PrefillTime(CAUSAL, {2: TWO}), Candidate(Form.CAUSAL, True)),
    ],
    ids=lambda value: value.name if isinstance(value, Candidate) else "",
)
def test_the_form_that_made_the_times_is_chosen(truth, chosen):
    best, judged = choose(measured(truth))
    assert best.candidate == chosen
    assert best.unseen_error.max < 1e-6
    assert [j.candidate for j in judged] == list(CANDIDATES)


def test_an_unseen_length_is_predicted_by_a_fit_without_it():
    # The longest prompts alone tell α from c: without them the prediction must be off.
    truth = PrefillTime(ONE)
    times = measured(truth)
    bent = [
        Measurement(*p, m.elapsed_s * (2.0 if p.input_tokens == 8192 else 1.0))
        for p, m in zip(GRID, times, strict=True)
    ]
    judged = judge(Candidate(Form.PUBLISHED, False), bent)
    unseen = dict(zip(GRID, judged.unseen, strict=True))
    for point in GRID:
        if point.input_tokens == 8192:
            assert unseen[point] == pytest.approx(-0.5, abs=1e-6)
    assert judged.error.max < judged.unseen_error.max


def test_a_degree_without_measurements_uses_the_shared_coefficients():
    prefill_time = Candidate(Form.PUBLISHED, True).fit(measured(PrefillTime(ONE)))
    assert set(prefill_time.by_degree) == {1, 2}
    assert prefill_time.predict_s(4, 1000, 0) == pytest.approx(
        PrefillTime(ONE).predict_s(4, 1000, 0)
    )


def test_errors_of_a_part_are_those_of_its_measurements():
    judged = judge(Candidate(Form.PUBLISHED, False), measured(PrefillTime(ONE, {2: TWO})))
    part = judged.part(lambda m: m.degree == 2)
    assert part is not None
    assert len(part.seen) == len(GRID) / 2
    assert part.error.max <= judged.error.max
    assert judged.part(lambda m: m.degree == 8) is None


def test_one_length_alone_cannot_be_judged():
    with pytest.raises(ValueError, match="at least two input lengths"):
        judge(Candidate(Form.PUBLISHED, False), [Measurement(1, 100, 0, 1.0)])
