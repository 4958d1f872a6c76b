from __future__ import annotations

from dataclasses import replace

import pytest

from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.history import demands_s, initial_composition
from vertumnusd.simulate.outcome import Outcome
from vertumnusd.simulate.profiles import profile
from vertumnusd.simulate.traces import Arrival

CONDITIONS = Conditions(ranks=8, cp_degrees=(2, 4))


def test_demand_is_predicted_time_by_window_as_it_was_served():
    arrivals = [Arrival(at_s, 4096, (), 1.0) for at_s in (3.0, 19.9, 20.0, 65.0, 70.0)]
    outcome = Outcome.empty("ours", 8, [4096] * 5)
    outcome.degree[:] = 2, 4, 2, 4, 0  # the last one was refused
    outcome.cached_tokens[:] = 0, 1024, 0, 2048, 0
    times = profile("q3").predicted
    assert demands_s(arrivals, outcome, CONDITIONS, 20.0) == pytest.approx(
        [
            times.predict_s(2, 4096, 0) + times.predict_s(4, 3072, 1024),
            times.predict_s(2, 4096, 0),
            times.predict_s(4, 2048, 2048),
        ]
    )


def test_the_composition_to_begin_with_covers_the_demand_by_the_known_capacities():
    # κ: 16 s of a window where nothing is known
    assert initial_composition(32.0, CONDITIONS) == "2CP4"
    assert initial_composition(33.0, CONDITIONS) == "1CP4/2CP2"
    known = replace(CONDITIONS, capacity_shares=((2, 0.9), (4, 0.5)))
    assert initial_composition(32.0, known) == "1CP4/2CP2"
