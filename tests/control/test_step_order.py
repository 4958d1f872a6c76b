"""Which request's layers come next: pausing, its limit, and what a long request can rely on."""

import pytest
from leads import DECODE, messages, names, new_lead, prefill, running, u32

from vertumnusd.messages import Pulled, Reserve, Reserved, Step, StepDone

TOKEN_S = 0.05


def lead_of(step_s: float = 0.5):
    return new_lead(step_s=step_s, prefill_s=0.0, token_s=TOKEN_S)


class Worker:
    """Rank 0 of the lead: finishes its steps in order, each in the time predicted for it."""

    def __init__(self, lead, commands=()):
        self.lead, self.now = lead, 0.0
        self.steps: list[Step] = []
        self.tokens: dict[str, int] = {}
        self.log: list[tuple[str, int]] = []  # request, first layer
        self.hear(commands)

    def hear(self, commands):
        self.steps += messages(commands, Step)

    def admit(self, request: str, tokens: int):
        self.tokens[request] = tokens
        self.hear(running(self.lead, request, tokens))
        return self

    def finish(self) -> str:
        """End the oldest step; the requests it was of."""
        step = self.steps.pop(0)
        self.log.append((names(step), step.first_layer))
        share = (step.last_layer - step.first_layer) / 6
        elapsed_s = sum(self.tokens[part.request] for part in step.parts) * TOKEN_S * share
        self.now += elapsed_s
        requests = [part.request for part in step.parts]
        drawn = dict.fromkeys(requests, 1) if step.last_layer == 6 else {}
        self.hear(self.lead.step(self.now, StepDone(0, 5, step.seq, elapsed_s, drawn)))
        for request in requests:
            self.hear(self.lead.step(self.now, Pulled(DECODE, request, 6, 1, 0.1)))
        return names(step)


def test_a_long_prefill_is_paused_for_a_short_one_and_goes_on_where_it_was():
    worker = Worker(lead_of()).admit("long", 60)  # 3 s: a layer a step
    worker.finish()
    worker.admit("short", 6)
    for _ in range(6):
        worker.finish()

    assert worker.log == [
        *[("long", layer) for layer in range(3)],  # two were at the ranks already
        ("short", 0),
        *[("long", layer) for layer in range(3, 6)],
    ]


def test_a_longer_request_waits_for_the_one_that_has_less_left():
    worker = Worker(lead_of()).admit("a", 30).admit("b", 40)
    while worker.steps:
        worker.finish()
    assert [request for request, _ in worker.log] == ["a"] * 3 + ["b"] * 3


def test_no_more_than_four_requests_are_paused():
    worker = Worker(lead_of(step_s=0.01))
    for number, tokens in enumerate((4096, 1024, 256, 64, 16, 4, 1)):
        worker.admit(f"r{number}", tokens)
        worker.finish()
    begun = {names(step) for step in worker.steps} | {request for request, _ in worker.log}
    assert begun == {"r0", "r1", "r2", "r3", "r4"}


def test_a_request_is_not_kept_waiting_for_longer_than_it_takes_itself():
    """Short requests come without end; the long one ends all the same."""
    worker, number = Worker(lead_of(step_s=0.3)).admit("long", 60), 0  # 3 s
    worker.finish()
    passed_s = 0.0
    while any(request == "long" for request in worker.lead.requests):
        while len(worker.lead.requests) < 5:
            number += 1
            worker.admit(f"short{number}", 6)
        before = worker.now
        if worker.finish() != "long":
            passed_s += worker.now - before
    assert passed_s == pytest.approx(3.0, abs=2 * 0.3)


def test_a_short_request_does_not_wait_for_a_long_one_to_fill_the_cache():
    lead = lead_of()
    running(lead, "long", 60, chain=bytes(16 * 15))
    assert messages(lead.admit(0.0, prefill("short", 6, chain=bytes(16))), Reserve)


def test_a_request_reserves_nothing_of_a_prefill_that_may_still_fail():
    lead = lead_of(step_s=9.0)
    running(lead, "long", 60, chain=bytes(16 * 15))  # all its layers are at the ranks
    assert not messages(lead.admit(0.0, prefill("short", 6, chain=bytes(16))), Reserve)


def test_what_is_in_the_cache_already_is_not_waited_for():
    """Both begin with a cached block; what the first one computes, the second does not need."""
    lead = lead_of(step_s=0.01)
    ours, theirs = bytes(16) + b"a" * 16, bytes(16) + b"b" * 16
    lead.admit(0.0, prefill("a", 9, chain=ours))
    lead.step(0.0, Reserved(0, 5, "a", 1, u32(0, 1, 2)))
    assert messages(lead.admit(0.0, prefill("b", 9, chain=theirs)), Reserve)
