"""Which short requests share a step, and that each of them stands for itself."""

import pytest
from leads import DECODE, messages, names, new_lead, prefill, reserved, running

from vertumnusd.control.lead import FirstToken, RunFailed, SendRank
from vertumnusd.control.step_order import StepLimits
from vertumnusd.messages import (
    Discard,
    PrefillDone,
    Pull,
    Release,
    Reserve,
    Returned,
    Step,
    StepDone,
    StepFailed,
    StepPart,
)

OVERHEAD_S = 0.03  # what a prefill costs besides its tokens, of 10 ms each


def packing(*lengths: int, **limits):
    """A lead whose ranks are busy while prompts of these lengths become ready."""
    lead = new_lead(
        prefill_s=OVERHEAD_S, token_s=0.01, limits=StepLimits(**{"step_s": 1.0} | limits)
    )
    running(lead, "first", 10)
    running(lead, "second", 10)  # one step each, so no more are issued
    for number, tokens in enumerate(lengths):
        running(lead, f"r{number}", tokens)
    return lead, messages(lead.step(0.2, StepDone(0, 5, 1, 0.13, {"first": 1})), Step)


def test_short_requests_that_wait_share_a_step():
    _, (step,) = packing(10, 20, 12)
    assert names(step) == "r0+r2+r1"
    assert (step.first_layer, step.last_layer) == (0, 6)
    assert step.parts[1] == StepPart("r2", 0, 12)


@pytest.mark.parametrize(
    ("lengths", "limits", "together"),
    [
        pytest.param([5] * 4, {"pack_requests": 3}, "r0+r1+r2", id="requests"),
        pytest.param([5] * 4, {"pack_tokens": 10}, "r0+r1", id="tokens"),
        pytest.param(
            [20, 20, 20], {"step_s": 0.435}, "r0+r1", id="time, the overhead counted once"
        ),
        pytest.param([20, 20, 20], {"step_s": 0.42}, "r0", id="time"),
        pytest.param([5, 90], {"step_s": 0.5}, "r0", id="a long one does not fit"),
        pytest.param([5, 5], {"pack_requests": 1}, "r0", id="switched off"),
    ],
)
def test_a_pack_has_limits(lengths, limits, together):
    _, (step,) = packing(*lengths, **limits)
    assert names(step) == together


def test_each_of_a_pack_is_told_its_own_token_and_pulled():
    lead, _ = packing(10, 12)
    lead.step(0.4, StepDone(0, 5, 2, 0.13, {"second": 1}))
    commands = lead.step(0.6, StepDone(0, 5, 3, 0.25, {"r0": 7, "r1": 8}))

    assert [c for c in commands if isinstance(c, FirstToken)] == [
        FirstToken("r0", 7, 0, 0.25),
        FirstToken("r1", 8, 0, 0.25),
    ]
    assert {pull.request for pull in messages(commands, Pull, DECODE)} == {"r0", "r1"}
    assert PrefillDone("r1", 0, 0, 0.25, 0.25) in commands


def test_what_fails_in_a_pack_is_run_once_more_alone():
    """With blocks reserved anew, and beside others which could have been packed with it."""
    lead, _ = packing(10, 12)
    lead.step(0.4, StepDone(0, 5, 2, 0.13, {"second": 1}))
    failed = lead.step(0.5, StepFailed(0, 5, 3, "r0", "out of memory"))
    assert failed == [SendRank(0, Discard(1, 5, "r0"))]
    done = lead.step(0.6, StepDone(0, 5, 3, 0.25, {"r1": 8}))
    assert FirstToken("r1", 8, 0, 0.25) in done
    assert [pull.request for pull in messages(done, Pull)] == ["r1"]
    assert [release.request for release in messages(done, Release)] == ["r0"]
    (reserve,) = messages(done, Reserve)

    for request in ("busy", "ahead", "other"):
        running(lead, request, 10)
    lead.step(0.7, reserved(reserve))
    steps = [
        m for seq in (4, 5) for m in messages(lead.step(0.8, StepDone(0, 5, seq, 0.1, {})), Step)
    ]
    assert sorted(map(names, steps)) == ["other", "r0"]


def test_what_fails_alone_has_failed():
    lead, _ = packing(10, 12)
    lead.step(0.4, StepDone(0, 5, 2, 0.13, {"second": 1}))
    lead.step(0.5, StepFailed(0, 5, 3, "r0", "out of memory"))
    (reserve,) = messages(lead.step(0.6, StepDone(0, 5, 3, 0.25, {"r1": 8})), Reserve)
    lead.step(0.7, reserved(reserve))
    failed = lead.step(0.8, StepFailed(0, 5, 4, "r0", "out of memory"))
    assert RunFailed("r0", "out of memory") in failed


def test_what_fails_in_a_pack_is_given_back_in_a_drain():
    lead, _ = packing(10, 12)
    lead.step(0.4, StepDone(0, 5, 2, 0.13, {"second": 1}))
    lead.step(0.5, StepFailed(0, 5, 3, "r0", "out of memory"))
    lead.drain(0.5, 1, 10.0)
    done = lead.step(0.6, StepDone(0, 5, 3, 0.25, {"r1": 8}))
    assert Returned("r0", 0, "CP1[0]") in done
    assert not messages(done, Reserve)


def test_an_aborted_request_of_a_pack_leaves_alone():
    lead, _ = packing(10, 12)
    lead.step(0.4, StepDone(0, 5, 2, 0.13, {"second": 1}))
    lead.abort(0.5, "r0")
    done = lead.step(0.6, StepDone(0, 5, 3, 0.25, {"r0": 7, "r1": 8}))
    assert [c.request for c in done if isinstance(c, FirstToken)] == ["r1"]


def test_the_second_of_two_equal_prompts_waits_for_the_firsts_blocks():
    """Together they would compute the same blocks twice."""
    lead, _ = packing()
    (reserve,) = messages(lead.admit(0.3, prefill("a", 10, chain=bytes(32))), Reserve)
    lead.step(0.3, reserved(reserve))
    assert not messages(lead.admit(0.3, prefill("b", 10, chain=bytes(32))), Reserve)
