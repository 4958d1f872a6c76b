from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simple import arrival, conditions

from vertumnusd.control.fleet import parse_composition
from vertumnusd.simulate.bound import lower_bound
from vertumnusd.simulate.choice import Choice
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.generate import Phase, generate
from vertumnusd.simulate.light import LightCluster
from vertumnusd.simulate.outcome import summarise
from vertumnusd.simulate.policies import compositions, names, policy, run_policy
from vertumnusd.simulate.routers import ByCost, CacheAware, LeastLoaded, OverlapCost, RoundRobin
from vertumnusd.simulate.traces import arrivals

SMALL = Conditions(ranks=8, kv_tokens=60_000, noise_sigma=0.2)
LOAD = arrivals(generate([Phase(60.0, 4.0, "conversation")], seed=5), seed=1, noise_sigma=0.2)


@pytest.mark.parametrize("name", names((2, 4)))
def test_every_request_ends_once_and_none_beats_the_lower_bound(name):
    choice = policy(name).candidates(name, SMALL)[-1]
    outcome = run_policy(choice, LOAD, SMALL)
    summary = summarise(outcome)
    assert summary.requests == len(LOAD)
    bound = lower_bound(LOAD, SMALL)
    assert summary.mean_s >= summarise(bound).mean_s
    assert outcome.busy_gpu_s > 0
    assert 0 < summary.utilisation <= 1 or name == "bound"


@pytest.mark.parametrize("name", ["ours", "mix", "cache-aware", "overlap-cost"])
def test_a_run_is_the_same_every_time(name):
    choice = policy(name).candidates(name, SMALL)[0]
    fitting = [each for each in LOAD if each.input_tokens <= 2 * SMALL.kv_tokens]  # at any degree
    first, again = (run_policy(choice, fitting, SMALL) for _ in range(2))
    assert np.array_equal(first.ttft_s, again.ttft_s)
    assert summarise(first) == summarise(again)


def test_the_light_cluster_places_as_the_controller_does():
    # A home as large as the worker, so both own KV alike.
    chosen = replace(SMALL, cp_degrees=(2,), kv_tokens=600_000)
    light = run_policy(Choice("mix", "4CP2"), LOAD, chosen)
    controlled = run_policy(Choice("paper", "4CP2"), LOAD, chosen)
    assert np.mean(light.ttft_s) == pytest.approx(np.mean(controlled.ttft_s), rel=0.05)
    assert light.cached_tokens.sum() == pytest.approx(controlled.cached_tokens.sum(), rel=0.05)


def test_the_lower_bound_takes_the_best_degree_and_all_that_came_before():
    chosen = conditions(4, (1, 2))
    outcome = lower_bound([arrival(0.0, 1024, 1, 2), arrival(0.0, 1536, 1, 2, 3)], chosen)
    # 1024 tokens at degree 2; then 512 more behind 1024 that the first one had
    assert outcome.ttft_s.tolist() == [1.0, 0.5]
    assert outcome.cached_tokens.tolist() == [0, 1024]


def test_the_lower_bound_knows_how_slow_a_degree_really_is():
    slow = replace(conditions(4, (1, 2)), paces=((2, 3.0),))
    outcome = lower_bound([arrival(0.0, 1024, 1, 2)], slow)
    assert (outcome.ttft_s.tolist(), outcome.degree.tolist()) == ([2.0], [1])


def test_compositions_fill_the_ranks_and_reach_from_one_degree_to_the_other():
    mixes = compositions((2, 4), 40)
    assert mixes[0] == "20CP2"
    assert mixes[-1] == "10CP4"
    assert len(mixes) > 4
    for mix in mixes:
        assert parse_composition(mix, (2, 4), 40)
    assert "4CP4/12CP2/16CP1" not in mixes
    three = compositions((1, 2, 4), 40)
    assert any(mix.count("/") == 2 for mix in three)
    for mix in three:
        assert parse_composition(mix, (1, 2, 4), 40)


def play(router, workers, arrivals):
    chosen = conditions(sum(worker.degree for worker in workers))
    return LightCluster("x", workers, router, chosen).run(arrivals)


TWO = parse_composition("2CP1", (1,), 2)


def test_round_robin_takes_turns_whatever_the_load():
    # the second of the long ones waits for the first, though the other worker is idle
    long, short = arrival(0.0, 4096, *range(8)), arrival(0.0, 512, 9)
    outcome = play(RoundRobin(), TWO, [long, short, arrival(1.0, 512, 10)])
    assert outcome.ttft_s.tolist() == [8.0, 1.0, 8.0]


def test_least_loaded_counts_requests():
    requests = [arrival(0.0, 4096, *range(8)), arrival(0.0, 512, 9), arrival(0.5, 512, 10)]
    requests += [arrival(1.5, 512, 11)]
    # the third finds one request on either, and takes the first worker; the fourth the idle one
    assert play(LeastLoaded(), TWO, requests).ttft_s.tolist() == [8.0, 1.0, 8.5, 1.0]


def test_the_static_split_sends_long_inputs_to_the_large_degree_only():
    workers = parse_composition("1CP2/1CP1", (1, 2), 3)
    requests = [arrival(0.0, 512, 1), arrival(0.0, 1024, 2, 3), arrival(0.0, 1024, 4, 5)]
    outcome = play(ByCost(workers, threshold=1024), workers, requests)
    assert outcome.degree.tolist() == [1, 2, 2]
    assert outcome.ttft_s.tolist() == [1.0, 1.0, 2.0]


def cache_aware(**changed):
    values = {"cache_threshold": 0.5, "absolute": 1, "relative": 1.5, **changed}
    return CacheAware(TWO, 100, **values)


def test_cache_aware_follows_a_long_match_and_else_takes_the_emptiest():
    requests = [
        arrival(0.0, 1024, 1, 2),  # both empty: the first
        arrival(0.0, 512, 3),  # no match: the emptier, second
        arrival(9.0, 1536, 1, 2, 4),  # two thirds match: the first
        arrival(19.0, 1536, 3, 5, 6),  # one third is not enough: the second, with 1 block to 3
    ]
    outcome = play(cache_aware(), TWO, requests)
    assert outcome.cached_tokens.tolist() == [0, 0, 1024, 512]


def test_cache_aware_gives_a_match_up_when_loads_differ_too_much():
    requests = [arrival(0.0, 2048, 1, 2, 3, 4)]
    requests += [arrival(1.0, 2560, 1, 2, 3, 4, n) for n in (5, 6, 7)]
    kept = play(cache_aware(absolute=9), TWO, requests)
    assert kept.cached_tokens.tolist() == [0, 2048, 2048, 2048]
    # the third finds two requests on the first worker and none on the second
    spread = play(cache_aware(absolute=1), TWO, requests)
    assert spread.cached_tokens.tolist() == [0, 2048, 0, 2048]


@pytest.mark.parametrize(("weight", "cached"), [(0.5, 0), (2.0, 2048)])
def test_overlap_cost_weighs_cached_blocks_against_active_ones(weight, cached):
    requests = [
        arrival(0.0, 2048, 1, 2, 3, 4),  # the first worker, until 4
        arrival(5.0, 1024, 11, 12),  # nothing is active: the first worker, until 7
        # first: weight·(2 waiting + 1 own) + 2 active, second: weight·5 + 0 active
        arrival(6.0, 2560, 1, 2, 3, 4, 5),
    ]
    outcome = play(OverlapCost(2, weight), TWO, requests)
    assert outcome.cached_tokens.tolist() == [0, 0, cached]
