"""Copies of blocks from other ranks' pools into this rank's own, behind its steps.

* The **control thread** pins, reserves, publishes and releases as it is told (``Transfers``).
* The **transfer thread** copies, a small piece at a time: what a request waits for comes first, the
  rest is no faster than it may be, so that the engine thread does not notice.

A copy that this rank takes in::

    reserved ── Install ──► copying ──► installed ── Publish ──► published, gone
        └──────────────── ReleaseCopy ──────┴──► freed: while copying, after the piece under way

Blocks get a name only by Publish, and free only here, so no block has a new owner while the thread
may still write it, and none is named before all of it is there. This module knows no tensor: how a
piece gets from pool to pool is the ``Copier``'s affair.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn, Protocol

from vertumnusd.messages import (
    CopyRefused,
    CopyReleased,
    CopyReserved,
    Install,
    Installed,
    Pin,
    Pinned,
    Publish,
    Published,
    ReleaseCopy,
    ReserveCopy,
    Unpin,
)
from vertumnusd.rank.blocks import NoRoom
from vertumnusd.rank.cache import Cache
from vertumnusd.rank.link import Link, ProtocolError

RELEASED, AWAITED, LIMITED = range(3)  # which copy goes on

TransferMessage = Pin | Unpin | ReserveCopy | Install | Publish | ReleaseCopy


class BlockCopy(NamedTuple):
    """Block ``source_id`` of rank ``source_rank``'s pool goes to block ``target_id`` of our own."""

    source_rank: int
    source_id: int
    target_id: int


class Copier(Protocol):
    """How KV gets from another rank's pool into this rank's."""

    def pieces(self, copies: Sequence[BlockCopy]) -> Iterator[int]:
        """Copy a small piece at each step; its bytes. ValueError for blocks that are not there."""


@dataclass(frozen=True, slots=True)
class Source:
    """Name of what is pinned for others to read."""

    term: int
    transfer: int


@dataclass(frozen=True, slots=True)
class Destination:
    """Name of what is reserved for a copy."""

    term: int
    transfer: int


@dataclass(slots=True, eq=False)
class _Incoming:
    """A copy that this rank takes in; ``room`` has the block id of each missing chain index."""

    name: Destination
    room: dict[int, int]
    install: Install | None = None
    copies: list[BlockCopy] = field(default_factory=list)
    pieces: Iterator[int] | None = None
    started: float = 0.0
    kv_bytes: int = 0
    installed: bool = False
    released: bool = False

    @property
    def copying(self) -> bool:
        return self.install is not None and not self.installed

    @property
    def bytes_per_s(self) -> float:
        """0: no limit, somebody waits."""
        assert self.install is not None
        return self.install.bytes_per_s


class Transfers:
    """One rank's copies: ``receive`` is the control thread's, ``copy`` the transfer thread's."""

    def __init__(self, rank: int, ranks: int, cache: Cache, link: Link) -> None:
        self._rank = rank
        self._ranks = ranks
        self._cache = cache
        self._link = link
        self._changed = threading.Condition()  # guards the next two; notified when one may copy
        self._incoming: dict[Destination, _Incoming] = {}
        self._waiting: list[_Incoming] = []  # to be copied, in order of their Installs
        self._sources: set[Source] = set()  # the control thread's
        self._quiet_until = 0.0  # the transfer thread's: when a copy with a limit may go on

    # --- control thread

    def receive(self, message: TransferMessage) -> None:
        """Raises ProtocolError for an Install or Publish that nobody can mean."""
        match message:
            case Pin():
                self._pin(message)
            case Unpin():
                self._sources.discard(Source(message.term, message.transfer))
                self._cache.release(Source(message.term, message.transfer))
            case ReserveCopy():
                self._reserve(message)
            case Install():
                self._install(message)
            case Publish():
                self._publish(message)
            case ReleaseCopy():
                self._release(Destination(message.term, message.transfer))

    def _pin(self, pin: Pin) -> None:
        name = Source(pin.term, pin.transfer)
        if name in self._sources:
            return
        self._sources.add(name)
        pinned = self._cache.pin(name, pin.chain)
        blocks, block_ids = _u32(pinned), _u32(pinned.values())
        self._link.send(Pinned(self._rank, pin.term, pin.transfer, blocks, block_ids))

    def _reserve(self, reserve: ReserveCopy) -> None:
        name = Destination(reserve.term, reserve.transfer)
        if name in self._incoming:
            return
        reply = (self._rank, reserve.term, reserve.transfer)
        try:
            room = self._cache.reserve_copy(
                name, reserve.chain, reserve.home_base, reserve.home_ranks
            )
        except NoRoom as no:
            self._link.send(CopyRefused(*reply, no.needed, no.available))
            return
        with self._changed:
            self._incoming[name] = _Incoming(name, room)
        self._link.send(CopyReserved(*reply, _u32(room)))

    def _install(self, install: Install) -> None:
        with self._changed:
            incoming = self._incoming.get(Destination(install.term, install.transfer))
            if incoming is None or incoming.install is not None or incoming.released:
                return
            incoming.install = install
            incoming.copies = self._copies(incoming, install)
            self._waiting.append(incoming)
            self._changed.notify()

    def _copies(self, incoming: _Incoming, install: Install) -> list[BlockCopy]:
        blocks = array("I", install.blocks)
        ranks, ids = array("I", install.source_ranks), array("I", install.source_ids)
        if sorted(blocks) != sorted(incoming.room) or max(ranks, default=0) >= self._ranks:
            raise ProtocolError(f"an Install of {len(blocks)} blocks that were not asked for")
        places = zip(blocks, ranks, ids, strict=True)
        return [BlockCopy(rank, id_, incoming.room[block]) for block, rank, id_ in places]

    def _publish(self, publish: Publish) -> None:
        with self._changed:
            incoming = self._incoming.get(Destination(publish.term, publish.transfer))
            if incoming is None:
                return
            if not incoming.installed or incoming.released:
                raise ProtocolError("a Publish of what was not installed")
            del self._incoming[incoming.name]
        self._cache.publish_copy(incoming.name)
        self._link.send(Published(self._rank, publish.term, publish.transfer))

    def _release(self, name: Destination) -> None:
        with self._changed:
            incoming = self._incoming.get(name)
            if incoming is not None:
                incoming.released = True
                self._changed.notify()
                if incoming.copying:
                    return  # the transfer thread frees it
                del self._incoming[name]
        self._free(name)

    def _free(self, name: Destination, kv_bytes: int = 0) -> None:
        self._cache.release(name)
        self._link.send(CopyReleased(self._rank, name.term, name.transfer, kv_bytes=kv_bytes))

    # --- transfer thread

    def copy(self, copier: Copier) -> NoReturn:
        """Copy until the process ends."""
        try:
            while True:
                self.copy_next(copier)
        except Exception as error:
            self._link.fault(error)

    def copy_next(self, copier: Copier) -> None:
        """Wait for something to copy, and copy one piece of it, or see that it is over."""
        incoming = self._next()
        if incoming.released or not self._copy_piece(incoming, copier):
            self._finish(incoming)

    def _next(self) -> _Incoming:
        """Wait until there is one to go on with: given up, waited for, or when it may go on."""
        with self._changed:
            while True:
                first = min(self._waiting, key=_precedence, default=None)
                if first is None:
                    self._changed.wait()
                    continue
                pause_s = self._quiet_until - time.monotonic()
                if _precedence(first) < LIMITED or pause_s <= 0:
                    return first
                self._changed.wait(pause_s)

    def _copy_piece(self, incoming: _Incoming, copier: Copier) -> bool:
        """False if nothing is left. After a piece, the copies with a limit pause."""
        now = time.monotonic()
        if incoming.pieces is None:
            incoming.pieces, incoming.started = copier.pieces(incoming.copies), now
        copied = next(incoming.pieces, 0)
        incoming.kv_bytes += copied
        if incoming.bytes_per_s:
            self._quiet_until = now + copied / incoming.bytes_per_s
        return copied > 0

    def _finish(self, incoming: _Incoming) -> None:
        with self._changed:
            self._waiting.remove(incoming)
            incoming.installed = True
            released = incoming.released
            if released:
                del self._incoming[incoming.name]
        if released:
            self._free(incoming.name, incoming.kv_bytes)
            return
        elapsed_s = time.monotonic() - incoming.started
        term, transfer = incoming.name.term, incoming.name.transfer
        self._link.send(Installed(self._rank, term, transfer, incoming.kv_bytes, elapsed_s))


def _precedence(incoming: _Incoming) -> int:
    if incoming.released:
        return RELEASED
    return LIMITED if incoming.bytes_per_s else AWAITED


def _u32(numbers: Iterable[int]) -> bytes:
    return array("I", numbers).tobytes()
