"""How much a worker is given at once, where its lead runs requests in turn or pauses long ones."""

from types import SimpleNamespace

import pytest

from vertumnusd.control.fleet import Worker
from vertumnusd.control.worker_queue import PAUSING_MAX, Discipline, WorkerQueue


def queue(*, pausing: bool, shortest_first: bool = False) -> WorkerQueue:
    return WorkerQueue(Worker(1, 0), Discipline(shortest_first, remaining=True, pausing=pausing))


def request(number: int, accepted_at: float = 0.0):
    return SimpleNamespace(arrival=number, accepted_at=accepted_at, predicted_ns=0, turn=0.0)


def dispatched(queue: WorkerQueue, times_s: list[float]) -> list[float]:
    """Which of requests with these times are given to the worker at once."""
    given = []
    for number, time_s in enumerate(times_s):
        queue.add(request(number), time_s)
        while queue.ready:
            given.append(queue.waiting[0].predicted_ns / 1e9)
            queue.dispatch_first(0)
    return given


def test_a_worker_is_given_what_it_runs_and_one_ahead():
    assert dispatched(queue(pausing=False), [30.0, 1.0, 0.1]) == [30.0, 1.0]


def test_a_short_request_is_given_to_a_worker_that_has_long_ones():
    assert dispatched(queue(pausing=True), [30.0, 20.0, 1.0]) == [30.0, 20.0, 1.0]


@pytest.mark.parametrize("time_s", [1.0, 30.0])
def test_of_equals_it_still_gets_two(time_s):
    assert dispatched(queue(pausing=True), [time_s] * 3) == [time_s] * 2


def test_what_makes_a_pack_goes_together():
    assert dispatched(queue(pausing=True), [30.0] + [0.1] * 5) == [30.0] + [0.1] * 4


def test_there_is_a_limit():
    times = [30.0] + [0.001] * 20
    assert len(dispatched(queue(pausing=True), times)) == PAUSING_MAX


def test_what_is_left_of_a_paused_request_is_not_counted_anew():
    worker = queue(pausing=True)
    long, short = request(0), request(1)
    worker.add(long, 30.0)
    worker.dispatch_first(0)
    worker.add(short, 1.0)
    worker.dispatch_first(10_000_000_000)
    worker.remove(short)
    worker.goes_on(11_000_000_000)
    assert worker.free_at_ns == 30_000_000_000


def test_what_was_over_early_lets_the_rest_begin_early():
    worker = queue(pausing=False)
    first, second = request(0), request(1)
    for each in (first, second):
        worker.add(each, 30.0)
        worker.dispatch_first(0)
    worker.remove(first)
    worker.goes_on(20_000_000_000)
    assert worker.free_at_ns == 50_000_000_000
