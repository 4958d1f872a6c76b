"""The formulas of the method ("Adaptive Context Parallelism for Production LLM Serving"), by name.

Each value was worked out by hand; the working stands beside it.
"""

from __future__ import annotations

import pytest

from vertumnusd.control.fleet import Worker
from vertumnusd.control.placement import Candidate, Policy
from vertumnusd.control.prefill_time import Coefficients, PrefillTime, work

# Ê_C(R, P) = 2 + R/C seconds: 8 tokens take 10 s at degree 1, 6 s at degree 2, 4 s at degree 4.
SIMPLE = PrefillTime(Coefficients(d_s=2.0, a_s=0.0, b_s=0.0, c_s=1.0, alpha_s=0.0))

CP1 = Worker(1, 2)
CP2 = Worker(2, 0)
CP4 = Worker(4, 4)


def test_work_W():
    # 3 new tokens behind 2 cached ones see 3, 4 and 5 keys: 12 = 3·2 + 3·4/2
    assert work(3, 2) == 12
    # without a prefix: 1 + 2 + 3 + 4
    assert work(4, 0) == 10
    assert work(0, 7) == 0


def test_prefill_time_E():
    e = PrefillTime(Coefficients(d_s=1.0, a_s=0.1, b_s=0.01, c_s=0.4, alpha_s=0.5))
    # 1 + 0.1·3 + 0.01·2 + (0.4·3 + 0.5·12)/1 = 1.32 + 7.2
    assert e.predict_s(1, 3, 2) == pytest.approx(8.52)
    # only the last term is shared by the ranks: 1.32 + 7.2/2
    assert e.predict_s(2, 3, 2) == pytest.approx(4.92)


def test_placement_J():
    policy = Policy(SIMPLE, beta=1.5, lambda_=0.5)
    terms = policy.price(Candidate(CP2, queue_s=3.0, cached_tokens=4), 12, smallest_degree=1)
    # P = 4 of 12, so R = 8; s = Ê_2 = 2 + 8/2
    assert terms.service_s == 6.0
    # λ·(2·6 − 1·Ê_1) with Ê_1 = 2 + 8
    assert terms.gpu_price_s == pytest.approx(0.5 * 2)
    # q + β·s + price
    assert terms.cost_s == pytest.approx(3 + 1.5 * 6 + 1)


def test_placement_takes_the_smallest_J():
    policy = Policy(SIMPLE, beta=1.0, lambda_=1.0)
    # 8 tokens: CP1 costs 0 + 10 + (10 − 10) = 10; CP2 costs q + 6 + (12 − 10) = q + 8
    assert chosen(policy, [Candidate(CP1, 0.0, 0), Candidate(CP2, 1.9, 0)]) == CP2
    assert chosen(policy, [Candidate(CP1, 0.0, 0), Candidate(CP2, 2.1, 0)]) == CP1


def test_placement_uses_the_prefix_of_each_worker():
    policy = Policy(SIMPLE, beta=1.0, lambda_=0.0)
    # CP1 with 6 of 8 cached: 2 + 2 = 4; CP2 without: 2 + 8/2 = 6
    assert chosen(policy, [Candidate(CP1, 0.0, 6), Candidate(CP2, 0.0, 0)]) == CP1
    # a queue of 3 s outweighs the prefix: 7 against 6
    assert chosen(policy, [Candidate(CP1, 3.0, 6), Candidate(CP2, 0.0, 0)]) == CP2
    # β = 2 keeps the prefix together: 3 + 2·4 = 11 against 2·6 = 12
    patient = Policy(SIMPLE, beta=2.0, lambda_=0.0)
    assert chosen(patient, [Candidate(CP1, 3.0, 6), Candidate(CP2, 0.0, 0)]) == CP1


def test_placement_C_min_is_the_smallest_degree_among_the_candidates():
    policy = Policy(SIMPLE, beta=1.0, lambda_=1.0)
    # against degree 1: 4·4 − 1·10; against degree 2: 4·4 − 2·6
    terms, _ = policy.place([Candidate(CP4, 0.0, 0), Candidate(CP1, 99.0, 0)], 8)
    assert terms.gpu_price_s == pytest.approx(6)
    terms, _ = policy.place([Candidate(CP4, 0.0, 0), Candidate(CP2, 99.0, 0)], 8)
    assert terms.gpu_price_s == pytest.approx(4)


def test_preferred_degree_is_that_of_argmin_J_minus_q():
    candidates = [Candidate(CP1, 0.0, 0), Candidate(CP2, 100.0, 0)]
    # J − q at λ = 1: 10 for CP1, 6 + 2 for CP2; the queue does not count
    terms, preferred = Policy(SIMPLE, beta=1.0, lambda_=1.0).place(candidates, 8)
    assert (terms.candidate.worker, preferred) == (CP1, 2)
    # at λ = 3: 10 against 6 + 6
    _, preferred = Policy(SIMPLE, beta=1.0, lambda_=3.0).place(candidates, 8)
    assert preferred == 1


def chosen(policy: Policy, candidates: list[Candidate]) -> Worker:
    return policy.place(candidates, 8)[0].candidate.worker
