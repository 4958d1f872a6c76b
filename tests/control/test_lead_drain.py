"""A lead that drains: what it gives back, what it finishes, and when it says so."""

from leads import DECODE, messages, names, new_lead, prefill, reserved, running, step_done

from vertumnusd.control.lead import SendRank
from vertumnusd.messages import (
    Discard,
    Drained,
    HandedOff,
    Pulled,
    Release,
    Reserve,
    ReserveFailed,
    Returned,
    RoomMissing,
    Step,
    StepFailed,
)

DRAINED = Drained(1, 7, 1, 0)


def returned(request: str) -> Returned:
    return Returned(request, 0, "CP1[0]")


def finish(lead, seq: int, request: str = "a"):
    """The request's last step, and its pull."""
    done = lead.step(2.0, step_done(0, seq, request, token=1))
    return [*done, *lead.step(2.0, Pulled(DECODE, request, 6, 1, 0.1))]


def paused(lead, patience_s: float = 5.0):
    """A long prefill waits between layers while a short one runs, and the worker drains."""
    running(lead, "long", 60)
    running(lead, "short", 20)  # two steps
    lead.step(1.0, step_done(0, 1, "long"))
    lead.drain(1.0, 7, patience_s)
    lead.step(1.1, Pulled(DECODE, "long", 1, 1, 0.1))
    lead.step(1.5, step_done(0, 2, "long"))  # now only the short one is at the ranks
    lead.step(1.6, Pulled(DECODE, "long", 2, 1, 0.1))
    return lead


def test_an_idle_lead_is_drained_at_once_and_says_so_once():
    lead = new_lead()
    assert lead.drain(0.0, 7, 5.0) == [DRAINED]
    assert lead.drain(0.1, 7, 5.0) == []
    assert lead.tick(9.0) == []


def test_what_has_not_begun_is_given_back_after_its_blocks():
    lead = new_lead()
    running(lead, "a")
    running(lead, "b")

    assert lead.drain(1.0, 7, 5.0) == [SendRank(0, Release("b")), returned("b")]
    assert lead.requests == ["a"]


def test_what_waits_to_reserve_is_given_back_at_once():
    lead = new_lead()
    running(lead, "a", chain=bytes(16))
    lead.admit(0.0, prefill("b", 6, chain=bytes(16)))

    assert lead.drain(1.0, 7, 5.0) == [returned("b")]


def test_a_reservation_under_way_is_awaited_and_given_back():
    lead = new_lead()
    (reserve,) = messages(lead.admit(0.0, prefill("a", 6)), Reserve)
    assert lead.drain(1.0, 7, 5.0) == []

    assert lead.step(1.1, reserved(reserve)) == [
        SendRank(0, Release("a")),
        returned("a"),
        DRAINED,
    ]


def test_a_reservation_that_fails_in_a_drain_is_given_back_once():
    lead = new_lead()
    lead.admit(0.0, prefill("a", 6))
    lead.drain(1.0, 7, 5.0)

    failed = ReserveFailed(0, 5, "a", 2, 0)
    assert lead.step(1.1, failed) == [RoomMissing("a", 0, "CP1[0]"), DRAINED]


def test_what_runs_is_finished_and_handed_off_before_the_end():
    lead = new_lead()
    running(lead)
    assert lead.drain(0.5, 7, 5.0) == []
    lead.step(1.0, step_done(0, 1))
    lead.step(2.0, step_done(0, 2, token=1))
    lead.step(2.1, Pulled(DECODE, "a", 3, 1, 0.1))

    last = lead.step(2.2, Pulled(DECODE, "a", 6, 1, 0.1))
    assert last == [SendRank(0, Release("a")), HandedOff("a", 0), DRAINED]


def test_a_paused_request_is_finished_within_the_patience():
    lead = paused(new_lead(step_s=0.5, prefill_s=0.0, token_s=0.05))
    (step,) = messages(lead.step(2.0, step_done(0, 3, "short")), Step)
    assert (names(step), step.first_layer) == ("long", 2)


def test_past_the_patience_a_paused_request_is_discarded_and_given_back():
    lead = paused(new_lead(step_s=0.5, prefill_s=0.0, token_s=0.05), patience_s=2.0)
    assert lead.next_deadline() == 3.0
    assert lead.tick(2.9) == []

    assert lead.tick(3.0) == [
        SendRank(0, Discard(1, 5, "long")),
        SendRank(0, Release("long")),
        returned("long"),
    ]
    assert lead.next_deadline() is None
    lead.step(3.1, step_done(0, 3, "short"))
    lead.step(3.2, Pulled(DECODE, "short", 3, 1, 0.1))
    assert finish(lead, 4, "short")[-1] == DRAINED


def test_a_paused_request_is_given_back_after_its_last_pull():
    lead = new_lead(step_s=0.5, prefill_s=0.0, token_s=0.05)
    running(lead, "long", 60)
    running(lead, "short", 20)
    lead.step(1.0, step_done(0, 1, "long"))
    lead.step(1.5, step_done(0, 2, "long"))
    assert returned("long") not in lead.drain(2.0, 7, 0.0)
    assert returned("long") not in lead.step(2.1, Pulled(DECODE, "long", 1, 1, 0.1))

    assert returned("long") in lead.step(2.2, Pulled(DECODE, "long", 2, 1, 0.1))


def test_the_running_request_is_finished_however_long_it_takes():
    lead = new_lead(step_s=0.3)
    running(lead)
    lead.drain(0.5, 7, 0.0)
    (step,) = messages(lead.step(9.0, step_done(0, 1)), Step)
    assert names(step) == "a"


def test_a_request_that_meets_a_drain_is_given_back():
    lead = new_lead()
    lead.drain(0.0, 7, 5.0)
    assert lead.admit(0.1, prefill("a", 6)) == [returned("a")]
    assert not lead.requests


def test_a_failed_step_in_a_drain_does_not_hold_it_up():
    lead = new_lead(step_s=2.0)
    running(lead)
    lead.drain(0.5, 7, 5.0)
    lead.step(1.0, StepFailed(0, 5, 1, "a", "out of memory"))
    assert DRAINED in lead.step(1.0, step_done(0, 1))


def test_an_abort_outdoes_a_return():
    lead = new_lead()
    lead.admit(0.0, prefill("a", 6))
    lead.drain(0.1, 7, 5.0)
    lead.abort(0.2, "a")
    commands = lead.step(0.3, ReserveFailed(0, 5, "a", 2, 0))
    assert HandedOff("a", 0) in commands
    assert DRAINED in commands


def test_after_a_resume_the_lead_takes_requests_and_can_drain_again():
    lead = new_lead()
    (reserve,) = messages(lead.admit(0.0, prefill("a", 6)), Reserve)
    lead.drain(0.1, 7, 5.0)
    assert lead.resume(0.2) == []

    assert messages(lead.step(0.3, reserved(reserve)), Step)
    assert messages(lead.admit(0.4, prefill("b", 6)), Reserve)
    lead.abort(0.5, "b")
    lead.drain(0.6, 8, 5.0)
    lead.step(0.7, ReserveFailed(0, 5, "b", 2, 0))
    lead.step(1.0, step_done(0, 1))
    lead.step(1.0, Pulled(DECODE, "a", 3, 1, 0.1))
    assert finish(lead, 2)[-1] == Drained(1, 8, 1, 0)
