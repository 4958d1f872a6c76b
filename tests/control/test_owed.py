"""Ranks that owe an answer: who is late, and who only works slowly."""

import msgspec
import pytest

from vertumnusd.control.owed import Owed
from vertumnusd.messages import (
    Adopt,
    Adopted,
    Close,
    Closed,
    CopyRefused,
    CopyReleased,
    CopyReserved,
    DecodeFailed,
    Drawn,
    Generate,
    Park,
    Parked,
    Pin,
    Pinned,
    Publish,
    Published,
    Pull,
    Pulled,
    ReleaseCopy,
    Reserve,
    ReserveCopy,
    Reserved,
    ReserveFailed,
)

PREFILL, DECODE = 0, 4
ADOPT = Adopt(1, 5, 1, 0)
RESERVE = Reserve(1, 5, "a", b"", 1, 0, 0, 1, True)
PULL = Pull("a", 0, 1, b"", 0, 1, 0)
GENERATE = Generate("a", 7, 10, 0, 3)
CLOSE = Close("a")
PULLED = Pulled(DECODE, "a", 1, 0, 0.1)
CLOSED = Closed(DECODE, "a", 9)


def drawn(finished: str) -> Drawn:
    return Drawn(DECODE, ("a",), (8,), (finished,))


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        (ADOPT, Adopted(DECODE, 1, 5, 1)),
        (Park(1, 6, 1, 0), Parked(DECODE, 1, 6)),
        (RESERVE, Reserved(DECODE, 5, "a", 0, b"")),
        (RESERVE, ReserveFailed(DECODE, 5, "a", 2, 1)),
        (PULL, PULLED),
        (GENERATE, drawn("length")),
        (GENERATE, DecodeFailed(DECODE, "a", "why")),
        (CLOSE, CLOSED),
    ],
)
def test_a_rank_is_late_until_it_answers(message, answer):
    owed = Owed(5.0)
    owed.sent(10.0, DECODE, message)
    assert owed.late(15.0) == {}
    assert owed.late(15.1) == {DECODE: type(message).__name__}

    owed.heard(16.0, answer)
    assert owed.late(1000.0) == {}


def test_every_pull_is_owed_an_answer_of_its_own():
    owed = Owed(5.0)
    owed.sent(0.0, DECODE, PULL)
    owed.sent(0.0, DECODE, PULL)
    owed.heard(1.0, PULLED)
    assert owed.late(7.0) == {DECODE: "Pull"}


def test_each_token_gives_the_next_one_time():
    owed = Owed(5.0)
    owed.sent(0.0, DECODE, GENERATE)
    for now in (4.0, 8.0, 12.0):
        assert owed.late(now) == {}
        owed.heard(now, drawn(""))
    assert owed.late(12.0 + 5 * 4.0) == {}
    assert owed.late(12.1 + 5 * 4.0) == {DECODE: "Generate"}


def test_a_closed_request_is_owed_no_token():
    owed = Owed(5.0)
    owed.sent(0.0, DECODE, GENERATE)
    owed.sent(1.0, DECODE, CLOSE)
    owed.heard(1.1, CLOSED)
    assert owed.late(100.0) == {}


def test_pulls_do_not_excuse_an_engine_that_draws_nothing():
    owed = Owed(5.0)
    owed.sent(0.0, DECODE, GENERATE)
    for now in range(1, 7):
        owed.sent(now, DECODE, PULL)
        owed.heard(now + 0.1, PULLED)
    assert owed.late(7.0) == {DECODE: "Generate"}


def test_a_restarted_rank_owes_nothing_and_the_others_still_do():
    owed = Owed(5.0)
    owed.sent(0.0, PREFILL, RESERVE)
    owed.sent(0.0, DECODE, CLOSE)
    owed.gone(PREFILL)
    assert owed.late(6.0) == {DECODE: "Close"}


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        (Pin(1, 7, b""), Pinned(0, 1, 7, b"", b"")),
        (ReserveCopy(1, 7, b"", 0, 1), CopyReserved(0, 1, 7, b"")),
        (ReserveCopy(1, 7, b"", 0, 1), CopyRefused(0, 1, 7, 3, 2)),
        (Publish(1, 7), Published(0, 1, 7)),
        (ReleaseCopy(1, 7), CopyReleased(0, 1, 7)),
    ],
)
def test_a_rank_owes_an_answer_to_each_step_of_a_copy(message, answer):
    owed = Owed(5.0)
    owed.sent(0.0, 0, message)
    assert owed.late(6.0) == {0: type(message).__name__}
    owed.heard(6.0, msgspec.structs.replace(answer, transfer=8))  # another's
    assert owed.late(6.0)
    owed.heard(6.0, answer)
    assert owed.late(99.0) == {}
