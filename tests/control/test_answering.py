"""The life of a request at its gateway: one answer, and everything given back."""

from vertumnusd.control.answering import (
    AbortAtLead,
    AdmitToLead,
    Answering,
    Emit,
    Over,
    Resubmit,
)
from vertumnusd.control.lead import FirstToken, SendRank
from vertumnusd.messages import (
    Cancel,
    Close,
    Dispatch,
    Done,
    Failed,
    Finished,
    Generate,
    Open,
    PrefillDone,
    Reject,
    Sampling,
    Token,
)

EOS = 2
DECODE = 9


def new(max_new_tokens: int = 3) -> Answering:
    return Answering(
        request="a",
        input_tokens=10,
        max_new_tokens=max_new_tokens,
        sampling=Sampling(),
        stop_tokens=(EOS,),
        arrived=100.0,
    )


def dispatch(attempt: int = 0, decode_rank: int = DECODE) -> Dispatch:
    return Dispatch(1, 1, "a", attempt, "CP1[0]", 1, 0, 0, 1, 0.5, decode_rank, 4)


def prefilled(answering: Answering, token: int = 7, attempt: int = 0):
    answering.on_dispatch(101.0, dispatch(attempt))
    return answering.on_first_token(102.0, FirstToken("a", token, 8, 0.4))


def decoding(max_new_tokens: int = 3) -> Answering:
    answering = new(max_new_tokens)
    prefilled(answering)
    answering.on_prefill_done(102.0, PrefillDone("a", 0, 8, 0.4))
    answering.on_handed_off()
    return answering


def emitted(commands):
    return [c.event for c in commands if isinstance(c, Emit)]


def test_a_dispatch_opens_the_decode_rank_before_the_lead_admits():
    commands = new().on_dispatch(101.0, dispatch())
    assert commands == [
        SendRank(DECODE, Open("a", 4, Sampling(), (EOS,))),
        AdmitToLead(dispatch(), 0),
    ]


def test_after_hand_off_the_decode_rank_continues_behind_the_first_token():
    answering = new()
    assert emitted(prefilled(answering)) == [Token(7)]
    assert answering.on_handed_off() == [SendRank(DECODE, Generate("a", 7, 10, 0, 2))]


def test_the_answer_ends_once_with_both_first_token_times():
    answering = decoding()
    answering.on_drawn(103.0, 8)
    token, finished = emitted(answering.on_drawn(104.0, 9))

    assert token == Token(9)
    assert isinstance(finished, Finished)
    assert (finished.reason, finished.output_tokens) == ("length", 3)
    assert (finished.ttft_s, finished.handoff_ttft_s) == (2.0, 3.0)
    assert (finished.cached_tokens, finished.prefill_s, finished.queue_s) == (8, 0.4, 1.0)
    assert answering.on_drawn(105.0, 10) == []


def test_a_finished_request_closes_its_blocks_and_then_tells_the_controller():
    answering = decoding()
    assert SendRank(DECODE, Close("a")) in answering.on_drawn(103.0, EOS)
    assert answering.on_closed(DECODE) == [Done("a", 0), Over("a")]


def test_a_stop_token_right_after_prefill_ends_the_hand_off_too():
    answering = new()
    commands = prefilled(answering, token=EOS)
    assert emitted(commands)[-1].reason == "stop"
    assert AbortAtLead("a", "CP1[0]") in commands

    assert answering.on_handed_off() == [SendRank(DECODE, Close("a"))]


def test_one_token_needs_no_decode_rank():
    answering = new(max_new_tokens=1)
    answering.on_dispatch(101.0, dispatch(decode_rank=-1))
    commands = answering.on_first_token(102.0, FirstToken("a", 7, 0, 0.4))
    assert emitted(commands)[-1].reason == "length"
    assert answering.on_handed_off() == [Done("a", 0), Over("a")]


def test_prefill_only_draws_nothing():
    answering = new(max_new_tokens=0)
    answering.on_dispatch(101.0, dispatch(decode_rank=-1))
    assert answering.on_first_token(102.0, FirstToken("a", 7, 0, 0.4)) == []
    (finished,) = emitted(answering.on_prefill_done(102.0, PrefillDone("a", 0, 0, 0.4)))
    assert (finished.reason, finished.output_tokens) == ("prefilled", 0)


def test_a_client_that_leaves_while_waiting_is_forgotten_at_once():
    assert new().on_client_left() == [Cancel("a"), Done("a", 0), Over("a")]


def test_a_client_that_leaves_while_decoding_frees_the_blocks():
    answering = decoding()
    assert answering.on_client_left() == [Cancel("a"), SendRank(DECODE, Close("a"))]
    assert answering.on_closed(DECODE) == [Done("a", 0), Over("a")]


def test_a_lost_worker_is_retried_behind_the_tokens_already_sent():
    answering = new()
    prefilled(answering)
    answering.on_lead_gone()
    assert answering.on_lost(0, "rank 0 ended") == [SendRank(DECODE, Close("a"))]
    assert answering.on_closed(DECODE) == [Resubmit("a", 1)]

    (_, admit) = answering.on_dispatch(110.0, dispatch(attempt=1))
    assert (admit.position, answering.tokens_left) == (1, 2)
    answering.on_first_token(111.0, FirstToken("a", 8, 8, 0.1))
    assert answering.on_handed_off() == [SendRank(DECODE, Generate("a", 8, 11, 1, 1))]


def test_a_lost_decode_rank_waits_for_the_prefill_ranks_before_the_retry():
    answering = new()
    prefilled(answering)
    answering.on_decode_rank_gone(DECODE)
    assert answering.on_lost(0, "rank 9 ended") == [AbortAtLead("a", "CP1[0]")]
    assert answering.on_handed_off() == [Resubmit("a", 1)]


def test_a_decode_rank_that_died_before_hand_off_is_not_talked_to():
    answering = new()
    prefilled(answering)
    answering.on_decode_rank_gone(DECODE)
    assert answering.on_handed_off() == []


def test_three_losses_are_an_error():
    answering = new()
    for attempt in range(2):
        answering.on_dispatch(101.0, dispatch(attempt, decode_rank=-1))
        answering.on_lead_gone()
        answering.on_lost(attempt, "gone")
    answering.on_dispatch(101.0, dispatch(2, decode_rank=-1))
    answering.on_lead_gone()
    commands = answering.on_lost(2, "gone")

    (failed,) = emitted(commands)
    assert (failed.status, failed.code) == (500, "server_error")
    assert commands[-1] == Over("a")


def test_a_client_may_leave_between_loss_and_retry():
    answering = decoding()
    answering.on_lost(0, "gone")
    answering.on_client_left()
    assert answering.on_closed(DECODE) == [Done("a", 0), Over("a")]


def test_a_request_given_back_for_lack_of_room_opens_its_blocks_anew():
    answering = new()
    answering.on_dispatch(101.0, dispatch())
    assert answering.on_returned() == [SendRank(DECODE, Close("a"))]
    answering.on_dispatch(102.0, dispatch())
    assert answering.on_closed(DECODE) == []  # of the first opening
    answering.on_first_token(103.0, FirstToken("a", 7, 0, 0.1))
    assert answering.on_handed_off()[0].message == Generate("a", 7, 10, 0, 2)


def test_a_rejection_is_the_answer():
    reject = Reject("a", 0, "server_is_overloaded", "queue is full", 2.0)
    failed = Failed(503, "server_is_overloaded", "queue is full", 2.0)
    assert new().on_reject(reject) == [Emit(failed), Over("a")]


def test_a_dispatch_that_crosses_the_end_is_given_back():
    answering = new()
    answering.on_client_left()
    assert answering.on_dispatch(101.0, dispatch()) == [Done("a", 0)]


def test_a_close_that_the_dead_rank_owes_is_not_waited_for():
    answering = new()
    answering.on_dispatch(101.0, dispatch())
    answering.on_returned()
    answering.on_decode_rank_gone(DECODE)
    prefilled(answering)
    answering.on_handed_off()
    answering.on_client_left()
    assert answering.on_closed(DECODE) == [Done("a", 0), Over("a")]
