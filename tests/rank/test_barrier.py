"""The barrier in shared memory: two sides in one process, and peers that die or do not come."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from vertumnusd.layout import BARRIER_BYTES
from vertumnusd.rank import barrier
from vertumnusd.rank.barrier import SharedBarriers
from vertumnusd.rank.groups import CollectiveError, Group

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(not barrier.AVAILABLE, reason="for x86-64"),
]


class Pair:
    degree, base, pids = 2, 0, (os.getpid(),) * 2


GROUP = cast(Group, Pair())


@pytest.fixture
def fds() -> Iterator[list[int]]:
    fds = [os.memfd_create("exchange") for _ in range(4)]
    for fd in fds:
        os.ftruncate(fd, 100 + BARRIER_BYTES)
    yield fds
    for fd in fds:
        os.close(fd)


def sides(
    fds: list[int], timeout_s: float = 20.0, spin_s: float = 0.0
) -> tuple[SharedBarriers, SharedBarriers]:
    return (
        SharedBarriers(fds, 0, timeout_s, spin_s),
        SharedBarriers(fds, 1, timeout_s, spin_s),
    )


@pytest.mark.parametrize("spin_s", [0.0, 0.001])
def test_nobody_leaves_before_all_are_there(fds: list[int], spin_s: float) -> None:
    here, there = sides(fds, spin_s=spin_s)
    with ThreadPoolExecutor(1) as thread:
        for _ in range(3):
            waiting = thread.submit(here.wait, GROUP)
            with pytest.raises(TimeoutError):
                waiting.result(0.05)
            there.wait(GROUP)
            waiting.result(20)


def test_it_sleeps_while_it_waits(fds: list[int]) -> None:
    here, there = sides(fds)
    waits: list[int] = []
    futex = barrier._futex

    def spy(word: ctypes.c_uint32, operation: int, value: int) -> None:
        waits.append(operation)
        if operation == barrier.FUTEX_WAIT and waits.count(operation) == 3:
            there.wait(GROUP)
        futex(word, operation, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(barrier, "_futex", spy)
        here.wait(GROUP)
    assert waits.count(barrier.FUTEX_WAIT) == 3


def test_counts_start_anew_after_four_billion(fds: list[int]) -> None:
    for side in sides(fds):
        side._pages[side._rank][1] = 2**32 - 2
    here, there = (side.wait for side in sides_again(fds))
    with ThreadPoolExecutor(1) as thread:
        for _ in range(4):
            waiting = thread.submit(here, GROUP)
            there(GROUP)
            waiting.result(20)


def sides_again(fds: list[int]) -> list[SharedBarriers]:
    """Sides over the counts as they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(barrier.ctypes, "memset", lambda *_: None)
        return list(sides(fds))


def test_degrees_are_counted_apart(fds: list[int]) -> None:
    class Alone:
        degree, base, pids = 1, 0, (os.getpid(),)

    here, there = sides(fds)
    here.wait(cast(Group, Alone()))  # counts for nobody else
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(there.wait, GROUP)
        with pytest.raises(TimeoutError):
            waiting.result(0.05)
        here.wait(GROUP)
        waiting.result(20)


def test_a_peer_that_does_not_come_is_an_error(fds: list[int]) -> None:
    here, _ = sides(fds, timeout_s=0.05)
    with pytest.raises(CollectiveError, match="not come within"):
        here.wait(GROUP)


def test_a_peer_that_dies_is_an_error_long_before_the_timeout(fds: list[int]) -> None:
    here, _ = sides(fds, timeout_s=600.0)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as peer:

        class Mortal(Pair):
            pids = (os.getpid(), peer.pid)

        group = cast(Group, Mortal())
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(here.wait, group)
            with pytest.raises(TimeoutError):
                waiting.result(0.05)
            peer.kill()
            with pytest.raises(CollectiveError, match="died"):
                waiting.result(20)
    with pytest.raises(CollectiveError, match="died"):  # and one that was gone before
        SharedBarriers(fds, 0, 600.0, 0.0).wait(group)
