"""The measuring itself: rounds over the grid until every point is settled or the time is spent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from vertumnusd.control.prefill_time import PrefillTime
from vertumnusd.profile.grid import Point, in_turn
from vertumnusd.profile.progress import Progress, duration
from vertumnusd.profile.samples import SETTLED_RUNS, Samples
from vertumnusd.profile.worker import Worker

MOST_ROUNDS = 30


@dataclass(slots=True)
class Estimate:
    """How long a prefill will take here: what is assumed, times how far that was off so far."""

    assumed: PrefillTime
    _assumed_s: float = field(default=0.0)
    _taken_s: float = field(default=0.0)

    def learn(self, point: Point, taken_s: float) -> None:
        self._assumed_s += self.assumed.predict_s(*point)
        self._taken_s += taken_s

    def seconds(self, points: Sequence[Point]) -> float:
        factor = self._taken_s / self._assumed_s if self._assumed_s else 1.0
        return factor * sum(self.assumed.predict_s(*point) for point in points)


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
            left_s = estimate.seconds(order[n:])
            later_s = estimate.seconds(order) * max(0, SETTLED_RUNS - 1 - number)
            eta_s = min(left_s + later_s, max(left_s if not number else 0, end - time.monotonic()))
            progress.show(
                f"round {number + 1}, {n + 1} of {len(order)}: CP{point.degree},"
                f" {point.input_tokens} tokens, {point.cached_tokens} cached;"
                f" {duration(eta_s)} left"
            )
            started = time.monotonic()
            worker.adopt(point.degree)
            samples.add(point, worker.prefill(point.uncached_tokens, point.cached_tokens))
            estimate.learn(point, time.monotonic() - started)
        if time.monotonic() >= end:
            break
    progress.wipe()
    return samples
