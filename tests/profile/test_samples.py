"""Which runs are believed."""

from __future__ import annotations

import os

import pytest

from vertumnusd.profile.disturbance import Stat, thread_stat
from vertumnusd.profile.grid import Point
from vertumnusd.profile.samples import Samples, is_disturbed
from vertumnusd.profile.worker import Run

POINT = Point(2, 100, 0)


def run(elapsed_s: float, *, waited_s: float = 0.0, ran_s: float = 0.0) -> Run:
    quiet = Stat(ran_s or elapsed_s, 0.0)
    return Run(elapsed_s, (quiet, Stat(ran_s or elapsed_s, waited_s)))


def samples(*runs: Run) -> Samples:
    found = Samples()
    for one in runs:
        found.add(POINT, one)
    return found


def test_a_rank_that_waited_for_a_core_spoils_the_run():
    assert is_disturbed(run(1.0, waited_s=0.021))
    assert not is_disturbed(run(1.0, waited_s=0.019))


def test_a_timer_interrupt_in_a_short_run_is_no_neighbour():
    assert not is_disturbed(run(0.01, waited_s=0.0009))
    assert is_disturbed(run(0.01, waited_s=0.0011))


def test_the_time_of_a_point_is_the_median_of_the_runs_that_count():
    found = samples(run(1.0), run(1.2), run(1.1), run(9.0, waited_s=5.0)).sample(POINT)
    assert (found.elapsed_s, found.runs, found.disturbed, found.quiet) == (1.1, 3, 1, True)


def test_without_a_quiet_run_the_least_cpu_time_of_the_busiest_rank_stands_in():
    found = samples(run(5.0, waited_s=3.0, ran_s=1.3), run(4.0, waited_s=2.0, ran_s=1.2)).sample(
        POINT
    )
    assert (found.elapsed_s, found.runs, found.disturbed, found.quiet) == (1.2, 0, 2, False)


@pytest.mark.parametrize(
    ("times_s", "settled"),
    [((1.0, 1.0), False), ((1.0, 1.01, 1.02), True), ((1.0, 1.1, 1.2), False)],
)
def test_a_point_is_settled_by_three_runs_that_agree(times_s, settled):
    assert samples(*map(run, times_s)).settled(POINT) is settled


def test_a_point_that_was_never_measured_is_not_settled():
    assert not Samples().settled(POINT)


def test_disturbed_runs_settle_nothing():
    assert not samples(*[run(1.0, waited_s=0.5)] * 9).settled(POINT)


def test_the_kernel_counts_the_running_time_of_this_thread():
    before = thread_stat(os.getpid())
    while thread_stat(os.getpid()).ran_s - before.ran_s < 0.02:
        pass
    spent = thread_stat(os.getpid()).since(before)
    assert spent.ran_s >= 0.02
    assert spent.waited_s >= 0
