"""What consoles see of the cluster: a snapshot for each that comes, then the same changes for all.

    hub, daemon ──happened(event)──► pending events ┐
    cluster() ──every 0.25 s──► what has changed ───┴─► one frame ──► a bounded buffer per console

Nothing is computed while nobody watches. Who does not read fast enough is let go, not waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import trio

from vertumnusd.control.snapshot import show_event
from vertumnusd.messages import (
    ENTRY_NAMES,
    ControlCommand,
    ControlEvent,
    EntryChanges,
    FeedDelta,
    FeedFrame,
    FeedSnapshot,
    Refused,
)

INTERVAL_S = 0.25
BUFFERED_FRAMES = 64
PENDING_EVENTS = 2_000  # between two frames
RECENT_EVENTS = 500  # that a console gets with its snapshot

Cluster = dict[str, Any]


class Feed:
    def __init__(
        self,
        cluster: Callable[[], Cluster],
        now: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        """``cluster`` returns a fresh JSON-ready picture each time."""
        self._cluster = cluster
        self._now = now
        self._wall = wall
        self._readers: set[trio.MemorySendChannel[str]] = set()
        self._someone = trio.Event()
        self._shown: Cluster = {}
        self._seq = 0
        self._pending: deque[dict[str, Any]] = deque(maxlen=PENDING_EVENTS)
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT_EVENTS)
        self._lost = 0

    def happened(self, event: ControlCommand | ControlEvent | Refused) -> None:
        """Tell consoles, if an operator cares. Never waits."""
        shown = show_event(event)
        if shown is None:
            return
        entry = {"t": self._now(), **shown}
        self._recent.append(entry)
        if self._readers:
            self._lost += len(self._pending) == PENDING_EVENTS
            self._pending.append(entry)

    @contextmanager
    def watch(self) -> Iterator[trio.MemoryReceiveChannel[str]]:
        """Frames as JSON, the snapshot first. The channel ends early if it is not emptied."""
        self._publish()
        send, receive = trio.open_memory_channel[str](BUFFERED_FRAMES)
        if not self._readers:
            self._shown = self._cluster()
        snapshot = FeedSnapshot(
            self._seq, self._now(), self._wall(), self._shown, list(self._recent)
        )
        send.send_nowait(_encode(snapshot))
        self._readers.add(send)
        self._someone.set()
        try:
            with receive:
                yield receive
        finally:
            self._readers.discard(send)
            send.close()

    async def run(self) -> None:
        """Publish what changes, as long as somebody watches."""
        while True:
            await self._someone.wait()
            await trio.sleep(INTERVAL_S)
            self._publish()
            if not self._readers:
                self._someone = trio.Event()

    def _publish(self) -> None:
        if not self._readers:
            self._pending.clear()
            return
        before, self._shown = self._shown, self._cluster()
        changed, entries = difference(before, self._shown)
        self._seq += 1
        frame = FeedDelta(self._seq, self._now(), changed, entries, list(self._pending), self._lost)
        self._pending.clear()
        self._lost = 0
        text = _encode(frame)
        for reader in list(self._readers):
            try:
                reader.send_nowait(text)
            except (trio.WouldBlock, trio.BrokenResourceError):
                self._readers.discard(reader)
                reader.close()


def difference(before: Cluster, after: Cluster) -> tuple[Cluster, dict[str, EntryChanges]]:
    """Values that are new or other, and entries of named lists; no key ever leaves a cluster."""
    changed: Cluster = {}
    entries: dict[str, EntryChanges] = {}
    for key, value in after.items():
        name = ENTRY_NAMES.get(key)
        if name is None or key not in before:
            if key not in before or before[key] != value:
                changed[key] = value
        elif changes := _entry_changes(name, before[key], value):
            entries[key] = changes
    return changed, entries


def _entry_changes(
    name: str, before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> EntryChanges | None:
    old = {entry[name]: entry for entry in before}
    put = [entry for entry in after if old.pop(entry[name], None) != entry]
    return EntryChanges(put, list(old)) if put or old else None


def _encode(frame: FeedFrame) -> str:
    return msgspec.json.encode(frame).decode()
