"""What requests would have waited for on other workers, by hand, and beside the real decisions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from vertumnusd.control.prefill_time import Coefficients, PrefillTime
from vertumnusd.control.what_if import Arrived, ttfts_s
from vertumnusd.live.experiment import live_settings
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.generate import Phase, generate
from vertumnusd.simulate.profiles import profile
from vertumnusd.simulate.traces import arrivals
from vertumnusd.simulate.virtual import VirtualCluster

# Ê = 0.01 s a token, divided by the degree
PREFILL_TIME = PrefillTime(Coefficients(d_s=0, a_s=0, b_s=0, c_s=0.01, alpha_s=0))


def waits(
    requests: Sequence[tuple[float, int]], degrees: Sequence[int], *, pausing: bool = False
) -> list[float]:
    arrived = [Arrived(at_s, tokens, 0) for at_s, tokens in requests]
    found = ttfts_s(arrived, degrees, PREFILL_TIME, pausing=pausing, unplaced_wait_s=60.0)
    return [round(seconds, 6) for seconds in found]


def test_a_request_alone_takes_its_time_on_the_fastest_worker():
    assert waits([(1.0, 400)], [1, 2]) == [2.0]


def test_the_next_one_goes_where_it_is_served_first():
    # 2 s ahead at degree 2 and 2 s of its own, or 4 s at degree 1: alike, so 4 s either way
    assert waits([(1.0, 400), (1.0, 300)], [1, 2]) == [2.0, 3.0]


def test_the_shortest_of_those_that_wait_is_served_first():
    # the second one waits for the first; the third goes before it, and costs it 1 s
    assert waits([(0.0, 400), (1.0, 300), (2.0, 100)], [1]) == [4.0, 7.0, 3.0]


def test_where_long_ones_pause_a_short_one_does_not_wait():
    assert waits([(0.0, 400), (1.0, 100)], [1], pausing=True) == [5.0, 1.0]


def test_a_cached_prefix_is_not_computed():
    arrived = [Arrived(0.0, 400, 300)]
    assert ttfts_s(arrived, [1], PREFILL_TIME, pausing=False, unplaced_wait_s=60.0) == [1.0]


def test_what_no_worker_has_room_for_waits_until_it_is_turned_away():
    arrived = [Arrived(0.0, 400, 0, least_degree=4), Arrived(0.0, 400, 0, least_degree=2)]
    found = ttfts_s(arrived, [1, 2], PREFILL_TIME, pausing=False, unplaced_wait_s=60.0)
    assert found == [60.0, 2.0]


@pytest.mark.parametrize(("kind", "rate"), [("short", 29.0), ("long", 0.8)])
def test_compositions_are_told_apart_as_the_simulator_does(kind: str, rate: float):
    """Those that the simulator finds 15 % better than another are better here as well."""
    conditions = Conditions(ranks=8, cp_degrees=(1, 2, 4), noise_sigma=0, outside_s=0)
    drawn = arrivals(generate((Phase(900 / rate, rate, kind),), 5), 0, 0.0)
    simulated, predicted = {}, {}
    for composition in ("8CP1", "2CP2/4CP1", "4CP2", "1CP4/4CP1", "2CP4"):
        settings = live_settings(composition, False, conditions, 20.0)
        outcome = VirtualCluster("ours", settings, conditions, False).run(drawn)
        arrived = [
            Arrived(arrival.at_s, arrival.input_tokens, int(cached))
            for arrival, cached in zip(drawn, outcome.cached_tokens, strict=True)
        ]
        degrees = [worker.degree for worker in settings.workers()]
        found = ttfts_s(
            arrived, degrees, profile("q3").predicted, pausing=False, unplaced_wait_s=60.0
        )
        simulated[composition] = float(outcome.ttft_s.mean())
        predicted[composition] = sum(found) / len(found)
    for better, better_s in simulated.items():
        for other, other_s in simulated.items():
            if better_s < 0.85 * other_s:
                assert predicted[better] < predicted[other]
