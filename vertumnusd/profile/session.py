"""The measuring itself: rounds over the grid until every point is settled or the time is spent."""

from __future__ import annotations

import time
from collections.abc import Sequence

from vertumnusd.control.prefill_time import PrefillTime
from vertumnusd.profile.grid import Point, in_turn
from vertumnusd.profile.progress import Progress, duration
from vertumnusd.profile.samples import SETTLED_RUNS, Samples
from vertumnusd.profile.worker import Worker

MOST_ROUNDS = 30


class Estimate:
    """How long a prefill will take here: what is assumed, times how far that was off so far."""

    def __init__(self, assumed: PrefillTime) -> None:
        self._assumed = assumed
        self._assumed_s = 0.0
        self._taken_s = 0.0

    def learn(self, point: Point, taken_s: float) -> None:
        self._assumed_s += self._assumed.predict_s(*point)
        self._taken_s += taken_s

    def seconds(self, points: Sequence[Point]) -> float:
        factor = self._taken_s / self._assumed_s if self._assumed_s else 1.0
        return factor * sum(self._assumed.predict_s(*point) for point in points)


def measure(
    worker: Worker,
    points: Sequence[Point],
    estimate: Estimate,
    budget_s: float,
    progress: Progress,
) -> Samples:
    """Every point at least once; then, while there is time, the ones that are not settled."""
    samples = Samples()
    end = time.monotonic() + budget_s
    for number in range(MOST_ROUNDS):
        order = in_turn([p for p in points if not samples.settled(p)], number)
        if not order:
            break
        for n, point in enumerate(order):
            if number and time.monotonic() + estimate.seconds([point]) > end:
                continue  # a shorter one may still fit
            left_s = _left_s(estimate, order, n, number, end - time.monotonic())
            progress.show(
                f"round {number + 1}, {n + 1} of {len(order)}: CP{point.degree},"
                f" {point.input_tokens} tokens, {point.cached_tokens} cached;"
                f" {duration(left_s)} left"
            )
            started = time.monotonic()
            worker.adopt(point.degree)
            samples.add(point, worker.prefill(point.uncached_tokens, point.cached_tokens))
            estimate.learn(point, time.monotonic() - started)
        if time.monotonic() >= end:
            break
    progress.wipe()
    return samples


def _left_s(
    estimate: Estimate, order: Sequence[Point], done: int, number: int, budget_s: float
) -> float:
    """The rest of this round and those that settle its points; but only the first one is sure."""
    round_s = estimate.seconds(order[done:])
    later_s = estimate.seconds(order) * max(0, SETTLED_RUNS - 1 - number)
    return min(round_s + later_s, max(round_s if number == 0 else 0.0, budget_s))
