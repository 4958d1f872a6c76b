"""The barrier of ranks that share memory: each counts its arrivals where the others can see it.

A rank raises its own count and waits until every peer's has come as far. Only its owner writes a
count, so nothing needs an atomic operation; but K and V written before must not become visible
after it, which holds where stores keep their order: on x86-64. Elsewhere ranks meet through gloo,
where a thread of its own passes every message on, which takes far longer.

Ranks of a worker mostly arrive within microseconds of each other, while to sleep and be woken takes
tens of them: so where no rank lacks a core, a rank looks around for a moment before it sleeps (by
futex(2)). Once asleep it looks up now and then, whether its peers still live.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import select
import time
from collections.abc import Sequence

from vertumnusd.layout import BARRIER_BYTES
from vertumnusd.rank.groups import CollectiveError, Group

AVAILABLE = platform.machine() == "x86_64"
SYS_FUTEX, FUTEX_WAIT, FUTEX_WAKE = 202, 0, 1
EVERYBODY = 0x7FFFFFFF
LOOK_UP_S = 0.02  # between two looks whether the peers still live
DEGREES = 32  # counts in a page: one for each degree, all of which are powers of two


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_Page = ctypes.c_uint32 * DEGREES  # a rank's arrivals, at the end of its exchange file


_syscall = ctypes.CDLL(None, use_errno=True).syscall
_LOOK_UP = ctypes.byref(_Timespec(0, int(LOOK_UP_S * 1e9)))


class SharedBarriers:
    """The barriers of one rank, over the exchange files of all ranks of its host.

    Its own counts are reset, so make this before the ranks of a lattice root first meet.
    ``spin_s``: how long it looks around for its peers before it sleeps.
    """

    def __init__(self, fds: Sequence[int], rank: int, timeout_s: float, spin_s: float) -> None:
        self._pages = [_map(fd) for fd in fds]
        own = self._pages[rank]
        ctypes.memset(ctypes.addressof(own), 0, ctypes.sizeof(own))
        self._rank = rank
        self._limits_s = (timeout_s, spin_s)
        self._barriers: dict[tuple[int, int], SharedBarrier] = {}

    def wait(self, group: Group) -> None:
        """Wait for the ranks of the group, who have all reset their counts.

        Raises CollectiveError soon after a peer has died, and when one has not come in time.
        """
        ranks = (group.degree, group.base)
        if ranks not in self._barriers:
            self._barriers[ranks] = self._barrier(group)
        self._barriers[ranks].wait()

    def _barrier(self, group: Group) -> SharedBarrier:
        size, index = ctypes.sizeof(ctypes.c_uint32), group.degree.bit_length() - 1
        counts = [
            ctypes.c_uint32.from_buffer(self._pages[group.base + cp_rank], index * size)
            for cp_rank in range(group.degree)
        ]
        own = self._rank - group.base
        peers = [cp_rank for cp_rank in range(group.degree) if cp_rank != own]
        try:
            lives = [_life(group.pids[peer]) for peer in peers]
        except ProcessLookupError as error:
            raise CollectiveError("barrier: a peer has died") from error
        others = [(counts[peer], life) for peer, life in zip(peers, lives, strict=True)]
        return SharedBarrier(counts[own], others, *self._limits_s)


_Peer = tuple[ctypes.c_uint32, select.poll]  # its count, and what tells that it has ended


class SharedBarrier:
    """This rank's side of the barrier of one set of ranks."""

    def __init__(
        self, own: ctypes.c_uint32, peers: Sequence[_Peer], timeout_s: float, spin_s: float
    ) -> None:
        self._own = own
        self._peers = peers
        self._timeout_s = timeout_s
        self._spin_s = spin_s

    def wait(self) -> None:
        """Return when every peer has called this as often as this rank."""
        started = time.perf_counter()
        turn = self._own.value = (self._own.value + 1) & 0xFFFFFFFF
        _futex(self._own, FUTEX_WAKE, EVERYBODY)
        for count, life in self._peers:
            while _behind(count.value, turn) and time.perf_counter() < started + self._spin_s:
                pass
            while _behind(seen := count.value, turn):
                _futex(count, FUTEX_WAIT, seen)
                self._check(life, started, count, turn)

    def _check(self, life: select.poll, started: float, count: ctypes.c_uint32, turn: int) -> None:
        dead = bool(life.poll(0))
        if not _behind(count.value, turn):
            return  # it came before it died, or in the last moment
        if dead:
            raise CollectiveError("barrier: a peer has died")
        if time.perf_counter() > started + self._timeout_s:
            raise CollectiveError(f"barrier: a peer has not come within {self._timeout_s:g} s")


def _life(pid: int) -> select.poll:
    """Polls as ready when the process has ended."""
    life = select.poll()
    life.register(os.pidfd_open(pid), select.POLLIN)
    return life


def _behind(count: int, turn: int) -> bool:
    """Whether a count has not reached a turn; both start anew after 2³² − 1."""
    return (count - turn) & 0x80000000 != 0


def _futex(word: ctypes.c_uint32, operation: int, value: int) -> None:
    """Wait, for a moment, while the word has this value; or wake so many who do."""
    _syscall(SYS_FUTEX, ctypes.byref(word), operation, ctypes.c_uint32(value), _LOOK_UP, None, 0)


def _map(fd: int) -> ctypes.Array[ctypes.c_uint32]:
    memory = mmap.mmap(fd, 0, flags=mmap.MAP_SHARED)
    return _Page.from_buffer(memory, len(memory) - BARRIER_BYTES)
