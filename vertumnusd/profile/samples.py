"""Repeated measurements of the points, and what is to be believed of them.

A run counts if no rank of it waited for a core for longer than a trace (``disturbance.py``). The
time of a point is the median of the runs that count. A point is *settled* when enough runs count
and their spread is small. On a machine that never is quiet a point may have no run that counts:
then the least CPU time of its busiest rank stands in, as neighbours can only add to that. It misses
what ranks wait for each other, so it is told apart in the profile.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from vertumnusd.control.prefill_time import Measurement
from vertumnusd.profile.grid import Point
from vertumnusd.profile.worker import Run

DISTURBED_SHARE = 0.02  # of a run's time, waited for a core by one of its ranks
DISTURBED_S = 0.001  # or this long: a timer interrupt is no neighbour
SETTLED_RUNS = 3
SETTLED_SPREAD = 0.03  # (third − first quartile) / median


@dataclass(frozen=True, slots=True)
class Sample:
    """What is known of a point."""

    point: Point
    elapsed_s: float
    runs: int  # that count
    disturbed: int  # runs that do not
    spread: float  # interquartile range over median
    quiet: bool  # False: no run counted, the time is CPU time

    @property
    def measurement(self) -> Measurement:
        return Measurement(*self.point, self.elapsed_s)


def is_disturbed(run: Run) -> bool:
    worst_s = max(stat.waited_s for stat in run.stats)
    return worst_s > max(DISTURBED_S, DISTURBED_SHARE * run.elapsed_s)


class Samples:
    """The runs so far."""

    def __init__(self) -> None:
        self._runs: dict[Point, list[Run]] = {}

    def add(self, point: Point, run: Run) -> None:
        self._runs.setdefault(point, []).append(run)

    @property
    def points(self) -> list[Point]:
        return sorted(self._runs)

    def sample(self, point: Point) -> Sample:
        """Raises KeyError for a point without any run."""
        runs = self._runs[point]
        times_s = sorted(run.elapsed_s for run in runs if not is_disturbed(run))
        disturbed = len(runs) - len(times_s)
        if not times_s:
            cpu_s = min(max(stat.ran_s for stat in run.stats) for run in runs)
            return Sample(point, cpu_s, 0, disturbed, 0.0, False)
        middle_s = median(times_s)
        last = len(times_s) - 1
        spread_s = times_s[round(0.75 * last)] - times_s[round(0.25 * last)]
        return Sample(point, middle_s, len(times_s), disturbed, spread_s / middle_s, True)

    def all(self) -> list[Sample]:
        return [self.sample(point) for point in self.points]

    def settled(self, point: Point) -> bool:
        if point not in self._runs:
            return False
        sample = self.sample(point)
        return sample.runs >= SETTLED_RUNS and sample.spread <= SETTLED_SPREAD
