"""Ties and shortcuts of placement; its formula is in test_paper.py."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vertumnusd.control.fleet import Worker
from vertumnusd.control.placement import Candidate, Policy
from vertumnusd.control.prefill_time import Coefficients, PrefillTime

# Ê_C(R, P) = R / C
POLICY = Policy(PrefillTime(Coefficients(0.0, 0.0, 0.0, 1.0, 0.0)), beta=1.0, lambda_=0.0)


def test_of_equal_costs_the_shorter_queue_wins():
    # 8 tokens: 0 s queue and 8 s, or 4 s queue and 4 s
    cached, empty = Candidate(Worker(1, 0), 4.0, 4), Candidate(Worker(1, 1), 0.0, 0)
    assert POLICY.place([cached, empty], 8)[0].candidate == empty


def test_of_equal_costs_and_queues_the_longer_prefix_wins():
    # Ê = 4 either way: 8 tokens on two ranks, or 4 uncached ones on one
    cached, wide = Candidate(Worker(1, 2), 1.0, 4), Candidate(Worker(2, 0), 1.0, 0)
    assert POLICY.place([wide, cached], 8)[0].candidate == cached


def test_of_workers_alike_the_first_wins():
    twins = [Candidate(Worker(1, base), 1.0, 0) for base in (3, 1, 2)]
    assert POLICY.place(twins, 8)[0].candidate.worker == Worker(1, 1)


candidates = st.lists(
    st.builds(
        Candidate,
        worker=st.builds(Worker, st.sampled_from([1, 2, 4]), st.integers(0, 60)),
        queue_s=st.sampled_from([0.0, 1.0, 2.5, 4.0]),
        cached_tokens=st.sampled_from([0, 8, 16]),
    ),
    min_size=1,
    unique_by=lambda candidate: candidate.worker,
)


@given(candidates)
def test_no_candidate_costs_less_than_the_chosen_one(candidates):
    terms, preferred = POLICY.place(candidates, 32)
    smallest = min(c.worker.degree for c in candidates)
    all_terms = [POLICY.price(c, 32, smallest) for c in candidates]
    assert terms in all_terms
    assert terms.cost_s == min(t.cost_s for t in all_terms)
    assert preferred == min((t.own_s, t.candidate.worker.degree) for t in all_terms)[1]
