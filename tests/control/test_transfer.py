"""The coordinator of copies: who is told what, and when (the storm is in tests/rank)."""

from __future__ import annotations

from array import array

import pytest

from vertumnusd.control.lead_run import SendRank
from vertumnusd.control.transfer import TransferLimits, Transfers, delete
from vertumnusd.messages import (
    CopyRefused,
    CopyReleased,
    CopyReserved,
    DeleteBlocks,
    Install,
    Installed,
    Pin,
    Pinned,
    Publish,
    Published,
    Reclaim,
    ReleaseCopy,
    Replicate,
    Replicated,
    ReserveCopy,
    TransferFailed,
    Unpin,
)

CHAIN = bytes(range(48))  # three blocks


def u32(*numbers: int) -> bytes:
    return array("I", numbers).tobytes()


def replicate(number: int = 1, kind: str = "intra", ranks: int = 1) -> Replicate:
    """From rank 0 to the ranks from 4 on."""
    return Replicate(1, number, kind, CHAIN, 0, 0, 4, 30.0, 1, ranks)


def started(number: int = 1, ranks: int = 1) -> Transfers:
    transfers = Transfers(TransferLimits())
    transfers.start(0.0, replicate(number, ranks=ranks))
    return transfers


def gathered(ranks: int = 1) -> Transfers:
    transfers = started(ranks=ranks)
    transfers.step(Pinned(0, 1, 1, u32(0, 1, 2), u32(7, 8, 9)))
    transfers.step(CopyReserved(4, 1, 1, u32(0, 2)))
    return transfers


def installed() -> Transfers:
    transfers = gathered()
    transfers.step(Installed(4, 1, 1, 100, 0.1))
    return transfers


def test_source_and_destination_are_asked_at_once():
    transfers = Transfers(TransferLimits())
    assert transfers.start(0.0, replicate(ranks=2)) == [
        SendRank(0, Pin(1, 1, CHAIN)),
        SendRank(4, ReserveCopy(1, 1, CHAIN, 4, 2)),
        SendRank(5, ReserveCopy(1, 1, CHAIN, 4, 2)),
    ]
    assert transfers.start(0.0, replicate(ranks=2)) == []


def test_a_rank_copies_what_it_lacks_from_where_it_is():
    transfers = gathered(ranks=2)
    commands = transfers.step(CopyReserved(5, 1, 1, u32(1)))
    assert commands == [
        SendRank(4, Install(1, 1, u32(0, 2), u32(0, 0), u32(7, 9), 30e6)),
        SendRank(5, Install(1, 1, u32(1), u32(0), u32(8), 30e6)),
    ]


def test_a_name_is_given_only_when_all_have_installed():
    transfers = gathered(ranks=2)
    transfers.step(CopyReserved(5, 1, 1, u32(1)))
    assert transfers.step(Installed(4, 1, 1, 100, 0.1)) == []
    assert transfers.step(Installed(4, 1, 1, 100, 0.1)) == []  # repeated
    assert transfers.step(Installed(5, 1, 1, 100, 0.1)) == [
        SendRank(0, Unpin(1, 1)),
        SendRank(4, Publish(1, 1)),
        SendRank(5, Publish(1, 1)),
    ]
    assert transfers.step(Published(4, 1, 1)) == []
    assert transfers.step(Published(5, 1, 1)) == [Replicated(1)]
    assert transfers.idle()


def test_a_copy_that_a_request_waits_for_goes_first_and_without_a_limit():
    transfers = Transfers(TransferLimits(max_running=1))
    transfers.start(0.0, replicate(1))
    assert transfers.start(0.0, replicate(2)) == []
    assert transfers.start(0.0, replicate(3, "fetch"))
    assert transfers.start(0.0, replicate(4, "fetch")) == []
    transfers.step(Pinned(0, 1, 3, u32(0, 1, 2), u32(7, 8, 9)))
    (install,) = transfers.step(CopyReserved(4, 1, 3, u32(0)))
    assert install.message.bytes_per_s == 0
    transfers.step(Installed(4, 1, 3, 1, 0.1))
    answer, *begun = transfers.step(Published(4, 1, 3))
    assert answer == Replicated(3)
    assert {command.message.transfer for command in begun} == {4}


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (CopyRefused(4, 1, 1, 3, 2), "rank 4 has room for 2 blocks of 3"),
        (CopyReserved(4, 1, 1, u32(0, 1)), "block 1 is not at the source any more"),
    ],
)
def test_what_cannot_be_done_is_released_before_it_is_said(event, reason):
    transfers = started()
    transfers.step(Pinned(0, 1, 1, u32(0, 2), u32(7, 9)))
    assert transfers.step(event) == [SendRank(4, ReleaseCopy(1, 1))]
    assert transfers.step(CopyReleased(4, 1, 1)) == [
        SendRank(0, Unpin(1, 1)),
        TransferFailed(1, reason),
    ]
    assert transfers.idle()


@pytest.mark.parametrize("make", [started, gathered])
def test_a_cancel_keeps_the_source_until_nobody_writes(make):
    transfers = make()
    assert transfers.cancel(1, 1) == [SendRank(4, ReleaseCopy(1, 1))]
    assert transfers.cancel(1, 1) == []
    assert transfers.step(Installed(4, 1, 1, 100, 0.1)) == []  # too late
    assert transfers.step(CopyReserved(4, 1, 1, u32(0))) == []
    assert transfers.step(CopyReleased(4, 1, 1)) == [
        SendRank(0, Unpin(1, 1)),
        TransferFailed(1, "cancelled"),
    ]


def test_a_cancel_while_queued_asks_nobody():
    transfers = Transfers(TransferLimits(max_running=1))
    transfers.start(0.0, replicate(1))
    transfers.start(0.0, replicate(2))
    assert transfers.cancel(1, 2) == [TransferFailed(2, "cancelled")]


def test_what_is_being_published_is_not_cancelled():
    transfers = installed()
    assert transfers.cancel(1, 1) == []
    assert transfers.tick(99.0) == []
    assert transfers.step(Published(4, 1, 1)) == [Replicated(1)]


def test_a_deadline_ends_it():
    transfers = gathered()
    assert transfers.tick(29.0) == []
    assert transfers.tick(30.0) == [SendRank(4, ReleaseCopy(1, 1))]
    assert transfers.step(CopyReleased(4, 1, 1))[-1] == TransferFailed(1, "not done within 30 s")


def test_a_lost_source_is_sent_nothing_more():
    transfers = gathered()
    assert transfers.lose([0]) == [SendRank(4, ReleaseCopy(1, 1))]
    assert transfers.step(CopyReleased(4, 1, 1)) == [TransferFailed(1, "rank 0 was lost")]


def test_a_lost_destination_writes_no_more():
    transfers = gathered()
    assert transfers.lose([4, 9]) == [
        SendRank(0, Unpin(1, 1)),
        TransferFailed(1, "rank 4 was lost"),
    ]
    assert transfers.lose([4]) == []


def test_a_destination_lost_while_it_publishes_is_a_failure():
    transfers = installed()
    assert transfers.lose([0]) == []  # the source is not needed any more
    assert transfers.lose([4]) == [TransferFailed(1, "rank 4 was lost")]


def test_a_destination_lost_while_it_releases_need_not_answer():
    transfers = gathered()
    transfers.cancel(1, 1)
    assert transfers.lose([4]) == [SendRank(0, Unpin(1, 1)), TransferFailed(1, "cancelled")]


def test_a_reclaim_tells_every_rank_what_was_known_of_it():
    assert delete(Reclaim(1, 2, CHAIN, (5, 9))) == [
        SendRank(2, DeleteBlocks(1, CHAIN, 5)),
        SendRank(3, DeleteBlocks(1, CHAIN, 9)),
    ]
