"""The order of a queue, and what is told of waits in it, against looking at every request."""

from __future__ import annotations

import random

import pytest

from vertumnusd.control.fleet import Worker
from vertumnusd.control.homes import Span
from vertumnusd.control.request import Request
from vertumnusd.control.worker_queue import AGEING, Discipline, WorkerQueue
from vertumnusd.messages import Submit

OURS = Discipline(shortest_first=True, remaining=False, pausing=False)


def request(number: int, accepted_at: float = 0.0) -> Request:
    submit = Submit(str(number), 0, 8, b"", 1)
    return Request(submit, number, accepted_at, blocks=1, decode_blocks=0)


def queue_of(*services_s: float) -> WorkerQueue:
    queue = WorkerQueue(Worker(1, 0), OURS)
    for number, service_s in enumerate(services_s):
        queue.add(request(number), service_s)
    return queue


def names(queue: WorkerQueue) -> list[str]:
    return [waiting.name for waiting in queue.waiting]


def test_the_shortest_goes_first_and_equals_in_order_of_arrival():
    assert names(queue_of(3.0, 1.0, 2.0, 1.0)) == ["1", "3", "2", "0"]


def test_nobody_is_overtaken_by_what_arrives_much_later():
    queue = queue_of(5.0)
    queue.add(request(1, accepted_at=4.9 / AGEING), 0.1)
    queue.add(request(2, accepted_at=4.8 / AGEING), 0.1)
    assert names(queue) == ["2", "0", "1"]


def test_the_first_one_makes_way_when_it_turns_out_to_take_longer():
    queue = queue_of(1.0, 2.0)
    queue.predict(queue.waiting[0], 3.0, may_move=False)
    assert names(queue) == ["0", "1"]
    queue.predict(queue.waiting[0], 3.0, may_move=True)
    assert names(queue) == ["1", "0"]
    assert queue.reserved_ns == 5_000_000_000


@pytest.mark.parametrize("seed", range(50))
def test_waits_are_those_of_the_requests_ahead_and_behind(seed):
    choose = random.Random(seed)
    queue, number = WorkerQueue(Worker(1, 0), OURS), 0
    for _ in range(80):
        action = choose.choice(("add", "add", "add", "dispatch", "predict", "remove", "take back"))
        if action == "add":
            queue.add(request(number, choose.randrange(20)), choose.randrange(1, 9))
            number += 1
        elif action == "dispatch" and queue.waiting:
            queue.dispatch_first(now_ns=0)
        elif action == "predict" and queue.waiting:
            queue.predict(queue.waiting[0], choose.randrange(1, 9), may_move=True)
        elif action == "remove" and queue.waiting + queue.dispatched:
            queue.remove(choose.choice(queue.waiting + queue.dispatched))
        elif action == "take back" and queue.dispatched:
            queue.take_back(choose.choice(queue.dispatched), Span(0, 1))
        turn = choose.uniform(0, 12)
        ahead = [r for r in queue.waiting if r.turn <= turn] + queue.dispatched
        behind = sum(r.turn > turn for r in queue.waiting)
        assert queue.wait_of(0, turn, 1) == (sum(r.predicted_ns for r in ahead) / 1e9, behind)
        assert [r.turn for r in queue.waiting] == sorted(r.turn for r in queue.waiting)
        everyone = queue.waiting + queue.dispatched
        assert queue.reserved_ns == sum(r.predicted_ns for r in everyone)
