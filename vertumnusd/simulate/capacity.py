"""κ_C, profiled before deployment: how much work a worker of each degree serves within its SLO.

The pool, all of one degree, is offered the workload at falling rates. The capacity of a worker is
its part of the work a second (the prefill times of what arrives) at the first rate at which the
wanted share of tokens meets the SLO. A worker alone would come out far too low: in a pool a
request need not wait behind a long one.

A degree at which long inputs miss the SLO by their prefill time alone is not to blame for a queue:
what is wanted is at most a share of what it attains without one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vertumnusd.control.fleet import Worker
from vertumnusd.control.settings import SLO
from vertumnusd.simulate.bound import lower_bound
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.light import LightCluster
from vertumnusd.simulate.outcome import attainment
from vertumnusd.simulate.profiles import profile
from vertumnusd.simulate.routers import ByCost
from vertumnusd.simulate.traces import TraceRow, arrivals

LOADS = tuple(step / 20 for step in range(24, 3, -1))  # of the work without any cache
WANTED_ATTAINMENT = 0.9
WANTED_SHARE = 0.95  # of the attainment without a queue
ROWS_MAX = 4_000
SEED = 77


def capacity_shares(
    rows: Sequence[TraceRow], conditions: Conditions
) -> tuple[tuple[int, float], ...]:
    """κ_C over the window length, for every configured degree."""
    rows = rows[:ROWS_MAX]
    return tuple((degree, _share(rows, degree, conditions)) for degree in conditions.degrees)


def _share(rows: Sequence[TraceRow], degree: int, conditions: Conditions) -> float:
    """Of the first of the falling loads that meets the SLO, or of the last one."""
    pool = [Worker(degree, base) for base in range(0, conditions.ranks - degree + 1, degree)]
    at_degree = replace(conditions, cp_degrees=(degree,), lattice=())
    predict_s = profile(conditions.profile).predicted.predict_s
    uncached_s = sum(predict_s(degree, row.input_tokens, 0) for row in rows)
    alone = attainment(lower_bound(arrivals(rows, SEED, 0.0), at_degree), SLO)
    wanted = min(WANTED_ATTAINMENT, WANTED_SHARE * alone)
    share = 0.0
    for load in LOADS:
        span_s = uncached_s / (load * len(pool))
        drawn = arrivals(rows, SEED, conditions.noise_sigma, len(rows) / span_s)
        outcome = LightCluster("capacity", pool, ByCost(pool), conditions).run(drawn)
        share = outcome.busy_gpu_s / (degree * len(pool) * span_s)
        if attainment(outcome, SLO) >= wanted:
            break
    return round(share, 3)
