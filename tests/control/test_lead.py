"""The lead: reservations, numbered steps, hand-off, aborts."""

import pytest
from leads import DECODE, messages, names, new_lead, prefill, running, step_done, u32

from vertumnusd.control.lead import FirstToken, RunFailed, SendRank
from vertumnusd.messages import (
    Begin,
    Discard,
    HandedOff,
    PrefillDone,
    Pull,
    Pulled,
    Release,
    Reserve,
    Reserved,
    ReserveFailed,
    RoomMissing,
    Step,
    StepDone,
    StepFailed,
)


def test_a_prompt_is_cut_into_layer_ranges_of_the_configured_time():
    commands = running(new_lead(step_s=1.0))  # 2 s over 6 layers: 3 layers a step

    assert [(s.seq, s.first_layer, s.last_layer) for s in messages(commands, Step)] == [
        (1, 0, 3),
        (2, 3, 6),
    ]


def test_later_steps_follow_the_speed_that_was_measured():
    lead = new_lead(step_s=0.3)  # predicted: one layer in 0.33 s
    running(lead)
    (step,) = messages(lead.step(1.0, StepDone(0, 5, 1, 0.1)), Step)
    assert (step.first_layer, step.last_layer) == (2, 5)  # 0.1 s a layer


def test_one_step_stays_queued_ahead_of_the_running_one():
    lead = new_lead(step_s=0.3)  # one layer a step
    assert [s.seq for s in messages(running(lead), Step)] == [1, 2]

    assert [s.seq for s in messages(lead.step(1.0, step_done(0, 1)), Step)] == [3]


def test_begin_carries_only_the_uncached_tokens():
    lead = new_lead()
    lead.admit(0.0, prefill("a", 10, chain=bytes(32)))
    commands = lead.step(0.0, Reserved(0, 5, "a", 2, u32(7, 8, 3)))

    (begin,) = messages(commands, Begin)
    assert begin.cached_tokens == 8
    assert begin.tokens == u32(8, 9)
    assert begin.block_ids == u32(7, 8, 3)


def test_a_fully_cached_prompt_still_computes_its_last_block():
    lead = new_lead()
    (reserve,) = messages(lead.admit(0.0, prefill("a", 8, chain=bytes(32))), Reserve)
    (begin,) = messages(lead.step(0.0, Reserved(0, 5, "a", 2, u32(7, 8))), Begin)

    assert reserve.max_cached == 1
    assert (begin.cached_tokens, begin.tokens) == (4, u32(4, 5, 6, 7))


def test_the_cached_prefix_is_what_every_rank_of_the_home_holds():
    lead = new_lead(degree=2)
    chain = (1).to_bytes(8, "little") + bytes(40)  # rotation 1: rank 1 owns blocks 0 and 2
    lead.admit(0.0, prefill("a", 13, chain=chain, home_ranks=2))
    assert not lead.step(0.0, Reserved(0, 5, "a", 3, u32(20, 21)))
    (begin, _) = messages(lead.step(0.0, Reserved(1, 5, "a", 2, u32(30, 31))), Begin)

    assert begin.cached_tokens == 8
    assert begin.block_ids == u32(30, 20, 31, 21)


def test_the_first_token_is_told_when_all_ranks_are_through():
    lead = new_lead(degree=2)
    running(lead)
    for rank, seq, token in ((0, 1, -1), (0, 2, 42), (1, 1, -1)):
        commands = lead.step(1.0, step_done(rank, seq, token=token))
        assert not any(isinstance(c, FirstToken) for c in commands)

    commands = lead.step(2.0, step_done(1, 2))
    assert commands[0] == FirstToken("a", 42, 0, 1.0)
    assert PrefillDone("a", 0, 0, 1.0, 2.0) in commands


def test_a_token_that_a_failed_rank_has_spoiled_is_never_told():
    lead = new_lead(degree=2)
    running(lead)
    lead.step(1.0, step_done(0, 1))
    lead.step(1.0, step_done(0, 2, token=42))
    commands = lead.step(1.1, StepFailed(1, 5, 1, "a", "out of memory"))
    for seq in (1, 2):
        commands += lead.step(1.2, step_done(1, seq))

    assert RunFailed("a", "out of memory") in commands
    assert not any(isinstance(c, FirstToken) for c in commands)


def test_each_step_is_pulled_and_blocks_are_released_after_the_last_pull():
    lead = new_lead()
    running(lead)
    (pull,) = messages(lead.step(1.0, step_done(0, 1)), Pull, DECODE)
    assert (pull.first_layer, pull.last_layer) == (0, 3)
    done = lead.step(2.0, step_done(0, 2, token=1))
    assert not messages(done, Release)

    assert not lead.step(2.1, Pulled(DECODE, "a", 3, 1, 0.1))
    assert lead.step(2.2, Pulled(DECODE, "a", 6, 1, 0.1)) == [
        SendRank(0, Release("a")),
        HandedOff("a", 0),
    ]
    assert not lead.requests


def test_the_request_ahead_runs_when_the_first_has_no_layers_left():
    lead = new_lead()
    running(lead, "a")
    assert not messages(running(lead, "b"), Step)  # two steps of "a" are out

    assert [names(s) for s in messages(lead.step(1.0, step_done(0, 1)), Step)] == ["b"]


def test_a_follower_reserves_after_its_leader_so_that_it_hits():
    lead = new_lead()
    running(lead, "a", chain=bytes(16))
    assert not messages(lead.admit(0.0, prefill("b", 6, chain=bytes(16))), Reserve)
    lead.step(1.0, step_done(0, 1))

    after = lead.step(2.0, step_done(0, 2, token=1))
    assert [r.request for r in messages(after, Reserve)] == ["b"]


def test_the_pace_is_measured_against_the_profile_from_the_first_step_to_the_last():
    """Three times slower than predicted, also when what is left has been predicted by that."""
    lead = new_lead(step_s=1.0, prefill_s=6.0)
    running(lead)
    for seq in range(1, 7):
        commands = lead.step(3.0 * seq, step_done(0, seq, elapsed_s=3.0))
    assert PrefillDone("a", 0, 0, 18.0, 6.0) in commands


def test_an_abort_stops_at_the_next_step_border():
    lead = new_lead(step_s=0.3)
    running(lead)
    assert lead.abort(0.5, "a") == [SendRank(0, Discard(1, 5, "a"))]
    assert lead.step(1.0, step_done(0, 1)) == []  # no further step, no pull

    assert lead.step(2.0, step_done(0, 2)) == [
        SendRank(0, Release("a")),
        PrefillDone("a", 0, 0, 1.0, 2 / 3),
        HandedOff("a", 0),
    ]


def test_an_abort_while_reserving_waits_for_the_reply_and_releases():
    lead = new_lead()
    lead.admit(0.0, prefill("a", 6))
    assert lead.abort(0.0, "a") == []
    assert SendRank(0, Release("a")) in lead.step(0.1, Reserved(0, 5, "a", 0, u32(0, 1)))


def test_an_abort_does_not_hold_up_the_request_behind():
    lead = new_lead(step_s=0.3)
    running(lead, "a")
    running(lead, "b")
    lead.abort(0.5, "a")

    assert [names(s) for s in messages(lead.step(1.0, step_done(0, 1)), Step)] == ["b"]


def test_missing_room_gives_the_request_back_and_unpins_the_rest_of_the_home():
    lead = new_lead(degree=2)
    lead.admit(0.0, prefill("a", 13, home_ranks=2))
    lead.step(0.0, Reserved(0, 5, "a", 0, u32(1, 2)))

    assert lead.step(0.0, ReserveFailed(1, 5, "a", 2, 0)) == [
        SendRank(0, Release("a")),
        RoomMissing("a", 0, "CP1[0]"),
    ]
    assert not lead.requests


def test_a_failed_step_fails_its_request_alone():
    lead = new_lead()
    running(lead, "a")
    running(lead, "b")
    commands = lead.step(1.0, StepFailed(0, 5, 1, "a", "out of memory"))

    assert commands == [RunFailed("a", "out of memory"), SendRank(0, Discard(1, 5, "a"))]
    commands = lead.step(1.0, step_done(0, 1))
    assert [names(s) for s in messages(commands, Step)] == ["b"]


def test_a_lost_decode_rank_frees_the_blocks_that_it_was_reading():
    lead = new_lead()
    running(lead)
    lead.step(1.0, step_done(0, 1))
    lead.step(2.0, step_done(0, 2, token=1))

    assert lead.lose_decode_rank(3.0, DECODE) == [SendRank(0, Release("a")), HandedOff("a", 0)]


def test_replies_of_another_epoch_and_repeats_are_ignored():
    lead = new_lead(step_s=0.3)
    running(lead)
    assert lead.step(1.0, StepDone(0, 4, 1, 0.5)) == []
    lead.step(1.0, step_done(0, 1))
    assert lead.step(1.0, step_done(0, 1)) == []


def test_a_rank_is_stuck_after_five_times_the_predicted_time():
    lead = new_lead(step_s=4.0, prefill_s=12.0)
    running(lead)  # 2 layers, 4 s a step
    assert lead.stuck_ranks(19.9) == []
    assert lead.stuck_ranks(20.1) == [0]


def test_a_request_cannot_be_admitted_twice():
    lead = new_lead()
    lead.admit(0.0, prefill("a", 6))
    with pytest.raises(ValueError, match="already"):
        lead.admit(0.0, prefill("a", 6))


def keeping(*replies):
    """A worker of three single homes keeps a chain of two blocks on all; its ranks answer."""
    lead = new_lead(degree=3)
    asked = messages(lead.admit(0.0, prefill("a", 9, bytes(32), keep_homes=(1, 2))), Reserve)
    assert [(r.home_base, r.blocks) for r in asked] == [(0, 3), (1, 2), (2, 2)]
    commands = []
    for reply in replies:
        assert not commands
        commands = lead.step(0.0, reply)
    return lead, commands


def test_a_chain_is_kept_on_further_homes_that_hold_its_prefix():
    lead, commands = keeping(
        Reserved(1, 5, "a", 2, u32(4, 5)),
        Reserved(0, 5, "a", 1, u32(7, 8, 9)),
        Reserved(2, 5, "a", 1, u32(1, 2)),
    )
    begins = messages(commands, Begin)
    assert [(b.cached_tokens, b.block_ids) for b in begins] == [(4, u32(7, 8, 9))] * 3
    assert not messages(commands, Release)
    released = lead.abort(0.0, "a")
    for rank in range(3):
        for seq in (1, 2):
            released += lead.step(0.0, step_done(rank, seq))
    assert {rank for rank in range(3) if messages(released, Release, rank)} == {0, 1, 2}


def test_a_further_home_without_room_or_prefix_is_left_out():
    _, commands = keeping(
        Reserved(0, 5, "a", 1, u32(7, 8, 9)),
        Reserved(1, 5, "a", 0, u32(4, 5)),
        ReserveFailed(2, 5, "a", 2, 0),
    )
    assert commands[0] == SendRank(1, Release("a"))
    assert len(messages(commands, Release)) == 1
    assert messages(commands, Begin)


def test_a_refusal_of_the_home_itself_lets_the_further_ones_go():
    lead, commands = keeping(
        Reserved(1, 5, "a", 0, u32(4, 5)),
        Reserved(2, 5, "a", 0, u32(4, 5)),
        ReserveFailed(0, 5, "a", 3, 0),
    )
    assert [c.rank for c in commands[:2]] == [1, 2]
    assert isinstance(commands[2], RoomMissing)
    assert not lead.requests


def test_the_blocks_of_an_answer_of_one_token_stay():
    """The answer is over with its first token, and is aborted before the last layers are pulled."""
    lead = new_lead(degree=2, step_s=9.0)
    running(lead)
    lead.step(0.5, step_done(0, 1, token=7))
    commands = lead.step(0.6, step_done(1, 1)) + lead.abort(0.6, "a")
    assert FirstToken("a", 7, 0, 0.5) in commands
    assert not messages(commands, Discard)
    assert messages(lead.step(0.7, Pulled(DECODE, "a", 6, 1, 0.1)), Release)
