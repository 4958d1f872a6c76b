"""Ties and shortcuts of placement; its formula is in test_paper.py."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from vertumnusd.control.fleet import Worker
from vertumnusd.control.placement import Comparison, Kind, Longer, Policy, Terms
from vertumnusd.control.prefill_time import Coefficients, PrefillTime

# Ê_C(R, P) = R / C
POLICY = Policy(PrefillTime(Coefficients(0.0, 0.0, 0.0, 1.0, 0.0)), beta=1.0, lambda_=0.0)

State = tuple[Worker, int, float, float, int]  # cached tokens, least q, q, n


def place(states: list[State], tokens: int, limit_s: float = 1e9) -> Comparison:
    waits = {worker: (queue_s, behind) for worker, _, _, queue_s, behind in states}
    kinds = defaultdict(list)
    for worker, cached, least_s, _, _ in states:
        kinds[worker.degree, cached].append((least_s, worker))
    offered = [Kind(*kind, sorted(workers)) for kind, workers in kinds.items()]
    return POLICY.place(offered, tokens, lambda worker, *_: waits[worker], limit_s)


def chosen(*states: tuple[Worker, int, float]) -> Worker:
    terms = place([(w, cached, q, q, 0) for w, cached, q in states], 8).best
    assert terms is not None
    return terms.worker


def test_of_equal_costs_the_shorter_queue_wins():
    # 8 tokens: 4 s queue and 4 s, or 0 s queue and 8 s
    assert chosen((Worker(1, 0), 4, 4.0), (Worker(1, 1), 0, 0.0)) == Worker(1, 1)


def test_of_equal_costs_and_queues_the_longer_prefix_wins():
    # Ê = 4 either way: 8 tokens on two ranks, or 4 uncached ones on one
    assert chosen((Worker(2, 0), 0, 1.0), (Worker(1, 2), 4, 1.0)) == Worker(1, 2)


def test_of_workers_alike_the_first_wins():
    assert chosen(*((Worker(1, base), 0, 1.0) for base in (3, 1, 2))) == Worker(1, 1)


def test_a_queue_above_the_limit_is_never_chosen():
    long = Worker(1, 0), 8, 5.0, 5.0, 0
    assert place([long, (Worker(1, 1), 0, 0.0, 4.0, 9)], 8, 4.5)[0].worker == Worker(1, 1)
    assert place([long], 8, 4.5)[0] is None


def fetched(states: list[State], longer: Longer) -> Terms | None:
    """Of 8 tokens."""
    plain = place(states, 8).best
    assert plain is not None
    waits = {worker: (queue_s, behind) for worker, _, _, queue_s, behind in states}
    kinds = [Kind(w.degree, cached, [(least_s, w)]) for w, cached, least_s, _, _ in states]
    return POLICY.place_fetching(
        lambda degree: [kind for kind in kinds if kind.degree == degree],
        sorted({kind.degree for kind in kinds}),
        8,
        lambda worker, *_: waits[worker],
        1e9,
        longer,
        plain,
    )


HOLDER = (Worker(1, 0), 6, 7.0, 7.0, 0)  # J = 7 + 2


def test_a_fetch_costs_what_it_takes_beyond_the_queue():
    longer = Longer(tokens=6, token_s=0.5, copy_s=1.0)
    # without: 8 s. With: 4 of 6 tokens are copied in 1 + 2 s, behind 1 s of queue; then 2 s
    terms = fetched([HOLDER, (Worker(1, 1), 2, 1.0, 1.0, 0)], longer)
    assert terms is not None
    assert (terms.worker, terms.cost_s, terms.fetch_s) == (Worker(1, 1), 3.0 + 2.0, 2.0)
    assert terms.kind.cached_tokens == 6
    # behind 4 s of queue it costs nothing
    terms = fetched([HOLDER, (Worker(1, 1), 2, 4.0, 4.0, 0)], longer)
    assert terms is not None
    assert (terms.cost_s, terms.fetch_s) == (4.0 + 2.0, 0.0)
    # whom it delays, it delays by the shorter time
    terms = fetched([HOLDER, (Worker(1, 1), 2, 1.0, 1.0, 1)], longer)
    assert terms is not None
    assert terms.cost_s == 3.0 + 2.0 + 2.0


def test_a_fetch_that_saves_nothing_is_none():
    # 1 + 6 s of copying and 2 s, against 8 s of computing; and at the holder itself
    slow = Longer(tokens=6, token_s=1.0, copy_s=1.0)
    assert fetched([HOLDER, (Worker(1, 1), 0, 0.0, 0.0, 0)], slow) is None
    assert fetched([HOLDER], Longer(tokens=6, token_s=0.0, copy_s=0.0)) is None


seconds = st.sampled_from([0.0, 1.0, 2.5, 4.0])
states = st.lists(
    st.tuples(
        st.builds(Worker, st.sampled_from([1, 2, 4]), st.integers(0, 60)),
        st.sampled_from([0, 8, 16]),
        seconds,
        seconds,
        st.integers(0, 2),
    ),
    min_size=1,
    unique_by=lambda state: state[0],
)


@given(states)
def test_no_worker_costs_less_than_the_chosen_one(states):
    states = [(w, cached, min(a, b), max(a, b), n) for w, cached, a, b, n in states]
    terms, preferred, of_kinds = place(states, 32)
    smallest = min(worker.degree for worker, *_ in states)
    costs, owns, least = [], [], {}
    for worker, cached, _, queue_s, behind in states:
        price = POLICY.price(worker.degree, cached, 32, smallest)
        costs.append(queue_s + behind * price.service_s + price.own_s)
        kind = worker.degree, cached
        least[kind] = min(least.get(kind, costs[-1]), costs[-1])
        owns.append((price.own_s, worker.degree))
    assert terms.cost_s == min(costs)
    assert preferred == min(owns)[1]
    # of each kind it tells the best, or what it is at least if that is more than the chosen one's
    told = {(each.kind.degree, each.kind.cached_tokens): each for each in of_kinds}
    assert told.keys() == least.keys()
    for kind, each in told.items():
        if each.at_least:
            assert terms.cost_s < each.cost_s <= least[kind]
        else:
            assert each.cost_s == least[kind]
