"""The channel between the hub and the door of one answer: bounded, whatever either does."""

from types import SimpleNamespace

from vertumnusd.messages import Failed, Finished, Placed, Sampling, Token
from vertumnusd.node.requests import Requests
from vertumnusd.node.service import Job

PLACED = Placed(1, 1, "a", "CP1[0]", 1, 1, 3, 0, 0.0, 0.0, 0.0, 0.0)
FINISHED = Finished("length", "CP1[0]", 1, 3, 0, 4, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
JOB = Job("a", 0.0, [1, 2, 3], 4, Sampling(), ())


def new_requests(observed: list) -> Requests:
    requests = Requests(SimpleNamespace(), 1000, observed.append)
    requests.attach(SimpleNamespace(submit=lambda job: None, leave=lambda request: None))
    return requests


async def test_a_client_that_does_not_read_loses_placements_but_no_token_and_no_ending():
    requests = new_requests([])
    async with requests.answer(JOB) as answer:
        for _ in range(100):
            requests.emit("a", PLACED)
        for token in range(4):
            requests.emit("a", Token(token))
            requests.emit("a", PLACED)
        requests.emit("a", FINISHED)
        events = [event async for event in answer]
    assert [e.token for e in events if isinstance(e, Token)] == [0, 1, 2, 3]
    assert isinstance(events[0], Placed)
    assert events[-1] == FINISHED


async def test_an_answer_that_is_cut_off_ends_once():
    observed: list = []
    requests = new_requests(observed)
    async with requests.answer(JOB) as answer:
        requests.emit("a", Token(7))
        requests.cut_off("enough")
        requests.emit("a", Token(8))
        events = [event async for event in answer]
    assert events[0] == Token(7)
    assert [type(event) for event in events[1:]] == [Failed]
    assert events[1].status == 503
    assert observed == events[1:]
    assert requests.running() == 0
