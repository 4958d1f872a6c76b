"""How much a worker is given at once, where its lead runs requests in turn or pauses long ones."""

import pytest

from vertumnusd.control.fleet import Worker
from vertumnusd.control.request import Request
from vertumnusd.control.worker_queue import PAUSING_MAX, Discipline, WorkerQueue
from vertumnusd.messages import Submit


def queue(*, pausing: bool, shortest_first: bool = False) -> WorkerQueue:
    return WorkerQueue(Worker(1, 0), Discipline(shortest_first, remaining=True, pausing=pausing))


def request(number: int, accepted_at: float = 0.0) -> Request:
    submit = Submit(str(number), 0, 1, b"", 1)
    return Request(submit, number, accepted_at, blocks=1, decode_blocks=0)


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


def give(worker: WorkerQueue, now_ns: int, number: int, time_s: float):
    given = request(number)
    worker.add(given, time_s)
    worker.dispatch_first(now_ns)
    return given


def test_a_paused_request_is_over_later_by_what_ran_meanwhile():
    worker = queue(pausing=True)
    give(worker, 0, 0, 30.0)
    short = give(worker, 10_000_000_000, 1, 1.0)
    worker.finish(11_000_000_000, short)
    assert worker.free_at_ns == 31_000_000_000


def test_of_a_worker_that_was_slow_only_the_longest_may_be_half_done():
    worker = queue(pausing=True)
    short = give(worker, 0, 0, 1.0)
    give(worker, 0, 1, 5.0)
    give(worker, 0, 2, 4.0)
    worker.finish(9_000_000_000, short)
    assert worker.free_at_ns == 13_000_000_000


def test_what_was_over_early_lets_the_rest_begin_early():
    worker = queue(pausing=False)
    first, _ = (give(worker, 0, number, 30.0) for number in range(2))
    worker.finish(20_000_000_000, first)
    assert worker.free_at_ns == 50_000_000_000


@pytest.mark.parametrize(
    ("service_s", "expected"),
    [
        pytest.param(1.0, (0.2, 2), id="before both, after a step"),
        pytest.param(6.0, (5.2, 1), id="between them"),
        pytest.param(30.0, (35.0, 0), id="behind both"),
    ],
)
def test_where_leads_pause_longer_ones_wait_for_a_request(service_s, expected):
    worker = queue(pausing=True)
    for number, time_s in enumerate((30.0, 5.0)):
        give(worker, 0, number, time_s)
    assert worker.wait_of(0, 0.0, round(service_s * 1e9)) == expected


def test_nobody_is_paused_who_is_sooner_over():
    worker = queue(pausing=True)
    give(worker, 0, 0, 30.0)
    # 1 s of it is left, and to delay it would cost 5 s
    assert worker.wait_of(29_000_000_000, 0.0, 5_000_000_000) == (1.0, 0)
