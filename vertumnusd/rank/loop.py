"""The prefill rank: a plain loop around the engine, and a thread that never waits for it.

* The **control thread** reads the socket. It fences every command, does the bookkeeping of blocks
  (Reserve, Release) at once, also while a step computes, and queues the rest.
* The **engine thread**, the main one, takes the queue in order: message in, step, message out.
* The **transfer thread** copies blocks from other ranks' pools behind the engine's back.

Fencing: the control thread keeps the (term, epoch) of the last Adopt that it let through, and
refuses an older Adopt and any other command that does not match exactly. It sees messages in the
order of the socket, and the queue keeps that order, so whatever reaches the engine belongs to the
geometry which the engine has adopted by then. Step numbers rise within an epoch; a repeated step
is ignored. A Park raises the fence as an Adopt does, and lets nothing pass but a newer one of them;
the engine answers it between two steps.

A Begin is queued together with the reservation that it found on arrival: a request which was
released and reserved again while its old steps were queued cannot publish blocks that it never
wrote.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import NoReturn, Protocol

from vertumnusd.messages import (
    Adopt,
    Begin,
    DeleteBlocks,
    Discard,
    Install,
    Park,
    Pin,
    Publish,
    RankStart,
    Refused,
    Release,
    ReleaseCopy,
    ReportBlocks,
    Reserve,
    ReserveCopy,
    Step,
    ToRank,
    Unpin,
)
from vertumnusd.rank.admission import Admission
from vertumnusd.rank.cache import Cache
from vertumnusd.rank.link import Link, ProtocolError
from vertumnusd.rank.transfer import Copier, Transfers

NOTHING_ADOPTED = (-1, -1)
PARKED = (0, 0)  # the geometry that no worker has


Command = Adopt | Park | Admission | Step | Discard


class Engine(Protocol):
    """What computes, or seems to: it runs commands one after the other, and answers each."""

    copier: Copier

    def adopt(self, adopt: Adopt) -> None: ...
    def park(self, park: Park) -> None: ...
    def begin(self, admission: Admission) -> None: ...
    def step(self, step: Step) -> None: ...
    def discard(self, request: str) -> None: ...


class PrefillRank:
    """One prefill rank: ``receive`` is the control thread's, ``serve`` the engine thread's."""

    def __init__(
        self,
        start: RankStart,
        link: Link,
        open_engine: Callable[[RankStart, Link, Cache], Engine],
    ) -> None:
        self._open_engine = open_engine
        self._start = start
        self._link = link
        self._cache = Cache(start, link)
        self._transfers = Transfers(start.rank, len(start.kv_fds), self._cache, link)
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._fence = NOTHING_ADOPTED  # this and the next two are the control thread's
        self._geometry = PARKED
        self._last_seq = -1

    def receive(self, message: ToRank) -> None:
        """Act at once or queue for the engine. Raises ProtocolError for what is not ours."""
        match message:
            case Release():
                self._cache.release(message.request)
            case Adopt():
                self._on_adopt(message)
            case Park():
                self._on_park(message)
            case Reserve() | Begin() | Step() | Discard():
                in_geometry = self._geometry != PARKED
                if in_geometry and (message.term, message.epoch) == self._fence:
                    self._on_command(message)
                else:
                    self._refuse(message)
            case Pin() | Unpin() | ReserveCopy() | Install() | Publish() | ReleaseCopy():
                self._transfers.receive(message)
            case DeleteBlocks():
                self._cache.reclaim(message)
            case ReportBlocks():
                self._cache.report_all()
            case _:
                raise ProtocolError(f"{type(message).__name__} sent to a prefill rank")

    def serve(self) -> NoReturn:
        """Build the engine, say Ready, and run commands until the process ends."""
        cores = os.sched_getaffinity(0)  # the engine pins its own thread, and no other
        engine = self._open_engine(self._start, self._link, self._cache)
        threading.Thread(
            target=self._copy, args=(engine.copier, cores), name="transfer", daemon=True
        ).start()
        while True:
            match self._commands.get():
                case Adopt() as adopt:
                    engine.adopt(adopt)
                case Park() as park:
                    engine.park(park)
                case Admission() as admission:
                    engine.begin(admission)
                case Step() as step:
                    engine.step(step)
                case Discard() as discard:
                    engine.discard(discard.request)

    def _copy(self, copier: Copier, cores: set[int]) -> NoReturn:
        os.sched_setaffinity(0, cores)
        self._transfers.copy(copier)

    def _on_adopt(self, adopt: Adopt) -> None:
        fence, geometry = (adopt.term, adopt.epoch), (adopt.degree, adopt.base)
        wavering = fence == self._fence and geometry != self._geometry
        if fence < self._fence or wavering or not self._in_lattice(adopt.degree, adopt.base):
            self._refuse(adopt)
            return
        if fence != self._fence:
            self._last_seq = -1
        self._fence, self._geometry = fence, geometry
        self._commands.put(adopt)

    def _on_park(self, park: Park) -> None:
        fence = (park.term, park.epoch)
        if fence < self._fence or (fence == self._fence and self._geometry != PARKED):
            self._refuse(park)
            return
        self._fence, self._geometry = fence, PARKED
        self._commands.put(park)

    def _on_command(self, command: Reserve | Begin | Step | Discard) -> None:
        match command:
            case Reserve():
                self._cache.reserve(command)
            case Begin():
                self._commands.put(self._admission(command))
            case Step():
                if command.seq > self._last_seq:
                    self._last_seq = command.seq
                    self._commands.put(command)
            case Discard():
                self._cache.retract(command.request)
                self._commands.put(command)

    def _in_lattice(self, degree: int, base: int) -> bool:
        """Whether these ranks are an aligned set of a configured degree, and this one is in it."""
        rank, ranks = self._start.rank, len(self._start.kv_fds)
        return (
            degree in self._start.cp_degrees
            and base == rank - rank % degree
            and base + degree <= ranks
        )

    def _admission(self, begin: Begin) -> Admission:
        reservation = self._cache.reservation(begin.request)
        if reservation is None:
            return Admission(begin, None, {})
        cached_blocks = begin.cached_tokens // self._start.block_tokens
        try:
            writable = reservation.writable(cached_blocks)
        except ValueError as error:
            raise ProtocolError(str(error)) from error
        return Admission(begin, reservation, writable)

    def _refuse(self, command: Adopt | Park | Reserve | Begin | Step | Discard) -> None:
        self._link.send(Refused(self._start.rank, *self._fence, type(command).__name__))
