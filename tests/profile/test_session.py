"""Rounds over the grid, on a worker that only says how long it took."""

from __future__ import annotations

import io
from typing import cast

import pytest

from vertumnusd.control.prefill_time import Coefficients, PrefillTime
from vertumnusd.profile.disturbance import Stat
from vertumnusd.profile.grid import Point, lengths, points
from vertumnusd.profile.progress import Progress
from vertumnusd.profile.samples import SETTLED_RUNS, Samples
from vertumnusd.profile.session import Estimate, measure
from vertumnusd.profile.worker import Run, Worker

SECOND_A_TOKEN = PrefillTime(Coefficients(0.0, 1.0, 0.0, 0.0, 0.0))
GRID = points([1, 2], lengths(64, 1), [0.0, 0.5], 16)
ENDLESS_S = 1e9


class ScriptedWorker:
    """Every prefill takes a second; at the sizes in ``busy`` a neighbour always disturbs."""

    def __init__(self, busy: frozenset[tuple[int, int]] = frozenset()) -> None:
        self.ran: list[Point] = []
        self._busy = busy
        self._degree = 0

    def adopt(self, degree: int) -> None:
        self._degree = degree

    def prefill(self, uncached_tokens: int, cached_tokens: int) -> Run:
        self.ran.append(Point(self._degree, uncached_tokens, cached_tokens))
        waited_s = 0.5 if (uncached_tokens, cached_tokens) in self._busy else 0.0
        return Run(1.0, (Stat(0.5, waited_s),) * self._degree)


def run(worker: ScriptedWorker, budget_s: float) -> Samples:
    progress = Progress(io.StringIO())
    return measure(cast(Worker, worker), GRID, Estimate(SECOND_A_TOKEN), budget_s, progress)


def test_every_point_is_measured_once_however_short_the_time():
    worker = ScriptedWorker()
    assert run(worker, 0.0).points == GRID
    assert sorted(worker.ran) == GRID


def test_points_that_agree_are_measured_three_times_and_no_more():
    worker = ScriptedWorker()
    samples = run(worker, ENDLESS_S)
    assert all(worker.ran.count(point) == SETTLED_RUNS for point in GRID)
    assert all(samples.settled(point) for point in GRID)


def test_disturbed_points_are_tried_again_and_said_to_be_disturbed():
    worker = ScriptedWorker(busy=frozenset({(64, 0)}))
    samples = run(worker, ENDLESS_S)
    sample = samples.sample(Point(1, 64, 0))
    assert worker.ran.count(sample.point) == sample.disturbed > SETTLED_RUNS
    assert not sample.quiet
    assert samples.sample(Point(1, 32, 0)).quiet


def test_an_estimate_learns_from_what_it_was_off_by():
    estimate = Estimate(SECOND_A_TOKEN)
    assert estimate.seconds([Point(1, 10, 0), Point(2, 5, 0)]) == 15
    estimate.learn(Point(1, 10, 0), 20.0)
    assert estimate.seconds([Point(1, 7, 0)]) == pytest.approx(14)
