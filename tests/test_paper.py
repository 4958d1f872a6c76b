"""The formulas of the method ("Adaptive Context Parallelism for Production LLM Serving"), by name.

Each value was worked out by hand; the working stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from control.scenario import blocks, settings

from vertumnusd.control.decaying import Decaying
from vertumnusd.control.demand import Demand, Window
from vertumnusd.control.fleet import Worker, composition_name
from vertumnusd.control.initial_composition import composition_for
from vertumnusd.control.placement import Kind, Policy, Terms, Wait
from vertumnusd.control.prefill_time import Coefficients, PrefillTime, work
from vertumnusd.control.prefix_statistics import PrefixStatistics
from vertumnusd.control.request import Request
from vertumnusd.control.settings import ReconfigurationSettings, SloClass
from vertumnusd.control.slo import SloAccount
from vertumnusd.control.worker_queue import Discipline, WorkerQueue
from vertumnusd.messages import Submit

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
    # P = 4 of 12, so R = 8; q = 3, and two requests wait behind this one
    terms = placed(policy, [(CP2, 3.0, 4, 2), (CP1, 99.0, 0, 0)], 12)
    # s = Ê_2 = 2 + 8/2
    assert terms.price.service_s == 6.0
    # λ·(2·6 − 1·Ê_1) with Ê_1 = 2 + 8
    assert terms.price.gpu_price_s == pytest.approx(0.5 * 2)
    assert terms.delay_s == pytest.approx(2 * 6)
    # q + n·s + β·s + price
    assert terms.cost_s == pytest.approx(3 + 12 + 1.5 * 6 + 1)


def test_placement_takes_the_smallest_J():
    policy = Policy(SIMPLE, beta=1.0, lambda_=1.0)
    # 8 tokens: CP1 costs 0 + 10 + (10 − 10) = 10; CP2 costs q + 6 + (12 − 10) = q + 8
    assert placed(policy, [(CP1, 0.0, 0, 0), (CP2, 1.9, 0, 0)]).worker == CP2
    assert placed(policy, [(CP1, 0.0, 0, 0), (CP2, 2.1, 0, 0)]).worker == CP1


def test_placement_uses_the_prefix_of_each_worker():
    policy = Policy(SIMPLE, beta=1.0, lambda_=0.0)
    # CP1 with 6 of 8 cached: 2 + 2 = 4; CP2 without: 2 + 8/2 = 6
    assert placed(policy, [(CP1, 0.0, 6, 0), (CP2, 0.0, 0, 0)]).worker == CP1
    # a queue of 3 s outweighs the prefix: 7 against 6
    assert placed(policy, [(CP1, 3.0, 6, 0), (CP2, 0.0, 0, 0)]).worker == CP2
    # β = 2 keeps the prefix together: 3 + 2·4 = 11 against 2·6 = 12
    patient = Policy(SIMPLE, beta=2.0, lambda_=0.0)
    assert placed(patient, [(CP1, 3.0, 6, 0), (CP2, 0.0, 0, 0)]).worker == CP1


def test_placement_counts_whom_the_request_delays():
    policy = Policy(SIMPLE, beta=1.0, lambda_=0.0)
    # CP2 takes 6 s, and two that wait there 6 s longer each: 18 s; CP1 takes 10 s behind 7 s
    assert placed(policy, [(CP2, 0.0, 0, 2), (CP1, 7.0, 0, 0)]).worker == CP1
    assert placed(policy, [(CP2, 0.0, 0, 2), (CP1, 9.0, 0, 0)]).worker == CP2


def test_placement_C_min_is_the_smallest_degree_that_serves():
    policy = Policy(SIMPLE, beta=1.0, lambda_=1.0)
    # against degree 1: 4·4 − 1·10; against degree 2: 4·4 − 2·6
    terms = placed(policy, [(CP4, 0.0, 0, 0), (CP1, 99.0, 0, 0)])
    assert terms.price.gpu_price_s == pytest.approx(6)
    terms = placed(policy, [(CP4, 0.0, 0, 0), (CP2, 99.0, 0, 0)])
    assert terms.price.gpu_price_s == pytest.approx(4)


def test_preferred_degree_is_that_of_argmin_J_minus_q():
    states = [(CP1, 0.0, 0, 0), (CP2, 100.0, 0, 0)]
    # J − q at λ = 1: 10 for CP1, 6 + 2 for CP2; the queue does not count
    kinds, wait = kinds_of(states)
    terms, preferred, _ = Policy(SIMPLE, beta=1.0, lambda_=1.0).place(kinds, 8, wait)
    assert terms is not None
    assert (terms.worker, preferred) == (CP1, 2)
    # at λ = 3: 10 against 6 + 6
    assert Policy(SIMPLE, beta=1.0, lambda_=3.0).place(kinds, 8, wait).preferred_degree == 1


def test_shortest_first_q_and_n():
    queue = WorkerQueue(CP1, Discipline(shortest_first=True, remaining=True))
    for name, service_s in (("running", 5.0), ("long", 4.0), ("short", 1.0)):
        queue.add(request(name), service_s)
        if name == "running":
            queue.dispatch_first(now_ns=10 * 10**9)
    # at 12 s, 3 s of the running one are left; 2 s go behind the short one and before the long one
    turn = queue.discipline.turn(request("new"), 2.0)
    assert queue.wait_of(12 * 10**9, turn, 2 * 10**9) == (3.0 + 1.0, 1)
    # an overdue one counts nothing
    assert queue.wait_of(16 * 10**9, turn, 2 * 10**9) == (1.0, 1)
    # seconds of waiting make up for prefill time: who came 60 s later goes behind 4 s with 1 s
    late = queue.discipline.turn(request("late", accepted_at=60.0), 1.0)
    assert queue.wait_of(12 * 10**9, late, 10**9) == (3.0 + 1.0 + 4.0, 0)


def test_the_published_q_is_the_sum_of_the_unfinished():
    queue = WorkerQueue(CP1, Discipline(shortest_first=False, remaining=False))
    for name, service_s in (("running", 5.0), ("long", 4.0)):
        queue.add(request(name), service_s)
    queue.dispatch_first(now_ns=10 * 10**9)
    assert queue.wait_of(12 * 10**9, turn=9.0, service_ns=10**9) == (9.0, 0)


State = tuple[Worker, float, int, int]  # q, cached tokens, n


def kinds_of(states: list[State]) -> tuple[list[Kind], Callable[[Worker, float, bool], Wait]]:
    waits = {worker: (queue_s, behind) for worker, queue_s, _, behind in states}
    kinds = [Kind(w.degree, cached, [(queue_s, w)]) for w, queue_s, cached, _ in states]
    return kinds, lambda worker, *_: waits[worker]


def placed(policy: Policy, states: list[State], input_tokens: int = 8) -> Terms:
    kinds, wait = kinds_of(states)
    terms = policy.place(kinds, input_tokens, wait).best
    assert terms is not None
    return terms


def request(name: str, accepted_at: float = 0.0) -> Request:
    submit = Submit(name, 0, 8, b"", 1)
    return Request(submit, arrival=1, accepted_at=accepted_at, blocks=1, decode_blocks=0)


# --- capacity, demand, decision


def test_capacity_is_the_sum_of_kappa():
    demand = Demand(
        ReconfigurationSettings(window_s=10, capacity_share=0.5, capacity_shares={4: 0.8})
    )
    # κ_2 = 10·0.5 = 5 s, twice; κ_4 = 10·0.8 = 8 s
    assert demand.capacity_s([CP2, CP2, CP4]) == pytest.approx(18)


def test_demand_D_is_the_sum_of_E():
    demand = Demand(ReconfigurationSettings(long_tokens=100))
    for service_s, tokens in ((1.5, 100), (2.0, 101), (0.5, 99)):
        demand.arrive(service_s, tokens)
    window = demand.close()
    assert window.demand_s == 4.0
    # one of three is longer than 100, with 101 of 300 tokens
    assert window.long_request_share == pytest.approx(1 / 3)
    assert window.long_token_share == pytest.approx(101 / 300)
    assert demand.close().requests == 0


def test_decision_by_the_thresholds():
    # κ = 10 s for each of two: 20 s; it splits above 0.9·20 and merges below 0.5·20
    assert verdicts(demands_s=[18.1]) == ["split"]
    assert verdicts(demands_s=[18.0]) == ["stay"]
    assert verdicts(demands_s=[10.0]) == ["stay"]
    assert verdicts(demands_s=[9.9]) == ["merge"]


def test_standard_error_of_D_and_of_a_share():
    demand = Demand(ReconfigurationSettings(long_tokens=100))
    for service_s, tokens in ((3.0, 101), (4.0, 50), (0.0, 50), (0.0, 50)):
        demand.arrive(service_s, tokens)
    window = demand.close()
    # √(3² + 4²); one of four is long: √(¼·¾/4)
    assert window.demand_error_s == 5.0
    assert window.share_error == pytest.approx(0.2165, abs=1e-4)


def test_decision_by_the_share_of_long_requests_when_demand_is_steady():
    # the first window is the reference; D within 10 % of it is steady, 5 points are a shift
    assert verdicts([15, 15], long_shares=[0.2, 0.26]) == ["stay", "merge"]
    assert verdicts([15, 16.5], long_shares=[0.2, 0.14]) == ["stay", "split"]
    assert verdicts([15, 15], long_shares=[0.2, 0.24]) == ["stay", "stay"]
    # D changed: a new reference
    assert verdicts([12, 15, 15], long_shares=[0.2, 0.4, 0.4]) == ["stay", "stay", "stay"]


def test_capacity_wins_when_the_signals_disagree():
    # more long requests ask for a merge; D above 18 s asks for a split
    assert verdicts([17.5, 18.5], long_shares=[0.2, 0.5])[-1] == "split"
    assert verdicts([10.5, 9.5], long_shares=[0.5, 0.2])[-1] == "merge"


def test_a_merge_needs_the_capacity_afterwards():
    demand = Demand(ReconfigurationSettings(**TEN_SECONDS, hysteresis=0.1))
    # one worker is left with κ = 10 s: 0.9·10 less a tenth is 8.1 s
    assert demand.allows(Window(requests=1, demand_s=8.1), [CP4])
    assert not demand.allows(Window(requests=1, demand_s=8.2), [CP4])


def test_initial_composition_meets_the_demand_with_the_largest_degrees():
    capacity_s = {2: 5.0, 4: 7.0}
    # eight ranks: 2CP4 serve 14 s, 1CP4/2CP2 17 s, 4CP2 20 s
    assert composition(composition_for([14.0, 3.0], capacity_s, 8)) == "2CP4"
    assert composition(composition_for([14.1], capacity_s, 8)) == "1CP4/2CP2"
    assert composition(composition_for([20.0], capacity_s, 8)) == "4CP2"


def test_initial_composition_without_enough_capacity_has_the_most():
    assert composition(composition_for([99.0], {2: 5.0, 4: 7.0}, 8)) == "4CP2"
    # 11 s on four ranks against 2·5 s
    assert composition(composition_for([99.0], {2: 5.0, 4: 11.0}, 10)) == "2CP4/1CP2"


# --- Algorithms 1 and 2

A, B = AB = blocks("ab")


def test_algorithm_1_counts_an_access_of_every_node_on_the_reused_path():
    statistics = prefix_statistics()
    statistics.reuse(AB, 2)
    statistics.reuse([A], 2)
    assert values(statistics.access[2]) == {A: 2.0, B: 1.0}
    assert values(statistics.access[1]) == {}


def test_algorithm_1_counts_what_is_missed_at_the_preferred_degree():
    # Ê_2 = 2 + R/2 with blocks of 10 tokens; L = 30, a and ab matched, none of them at degree 2:
    # a: Ê(30, 0) − Ê(20, 10) = 17 − 12; b: Ê(20, 10) − Ê(10, 20) = 12 − 7
    statistics = prefix_statistics()
    statistics.miss(AB, 0, 2, 30)
    assert values(statistics.missed[2]) == {A: 5.0, B: 5.0}
    # had a a replica there, only b would be missed
    statistics = prefix_statistics()
    statistics.miss(AB, 1, 2, 30)
    assert values(statistics.missed[2]) == {B: 5.0}


def test_algorithm_2_decays_both_statistics_and_forgets():
    statistics = prefix_statistics(decay=0.5)
    statistics.reuse(AB, 2)
    statistics.miss(AB, 0, 2, 30)
    statistics.decay()
    assert values(statistics.access[2]) == {A: 0.5, B: 0.5}
    assert values(statistics.missed[2]) == {A: 2.5, B: 2.5}
    # what comes later counts in full
    statistics.reuse([A], 2)
    assert values(statistics.access[2]) == {A: 1.5, B: 0.5}
    for _ in range(10):
        statistics.decay()
    assert values(statistics.access[2]) == values(statistics.missed[2]) == {}


# --- figures of merit


def test_attainment_is_weighted_by_tokens():
    account = SloAccount([SloClass(100, 1.0), SloClass(float("inf"), 10.0)])
    account.record(50, 0, 0.9)  # met
    account.record(50, 25, 1.1)  # missed
    account.record(300, 75, 9.0)  # met, in the other class
    assert account.attainment == pytest.approx(350 / 400)
    # 100 of 400 tokens came from cache
    assert account.hit_rate == pytest.approx(0.25)


TEN_SECONDS: dict[str, Any] = {"window_s": 10.0, "capacity_share": 1.0}


def verdicts(demands_s: list[float], long_shares: list[float] | None = None) -> list[str]:
    """What windows of 100 requests each speak for, by themselves, at κ = 20 s."""
    demand = Demand(ReconfigurationSettings(**TEN_SECONDS))
    shares = long_shares or [0.0] * len(demands_s)
    windows = [
        Window(requests=100, demand_s=d, long_requests=round(100 * share))
        for d, share in zip(demands_s, shares, strict=True)
    ]
    return [demand.judge(window, [CP2, CP4]).verdict for window in windows]


def composition(workers: Iterable[Worker]) -> str:
    return composition_name(workers)


def values(statistic: Decaying) -> dict[bytes, float]:
    return {node: value for value, node in statistic.coldest(len(statistic))}


def prefix_statistics(**changed: float) -> PrefixStatistics:
    return PrefixStatistics(settings(replication=changed), SIMPLE)
