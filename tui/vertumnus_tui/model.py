"""All that the console knows: the cluster now, what happened, what was.

Frames go in; pages look. Nothing here is of Textual, a socket or a clock: time is what frames say.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, replace
from itertools import count
from time import localtime, strftime
from typing import Any, NamedTuple

import msgspec

from vertumnus_tui.cluster import Cluster, Decision, Request, read
from vertumnus_tui.describe import Description, describe
from vertumnus_tui.history import History
from vertumnus_tui.numbers import duration
from vertumnus_tui.recent import Recent
from vertumnusd.messages import (
    ENTRY_NAMES,
    Converted,
    FeedDelta,
    FeedFrame,
    FeedSnapshot,
    Placed,
    RecordingLine,
)

EVENTS_KEPT = 5_000
OPERATIONS_KEPT = 200
DECISIONS_KEPT = 200
PLACEMENTS_KEPT = 2_000
SAME_CLOCK_S = 1.0  # a clock that is set differs by less


class FeedError(Exception):
    """The frames do not follow each other, or are none."""


@dataclass(frozen=True, slots=True)
class Event:
    number: int
    t: float
    kind: str
    about: Description


class Conversion(NamedTuple):
    """A split or merge that is over, and why it was begun."""

    t: float
    converted: Converted
    reason: str


class Model:
    def __init__(self) -> None:
        self.t = 0.0
        self.wall_s: float | None = None  # Unix time at t = 0
        self.revision = 0  # rises with every change
        self.history = History()
        self.recent = Recent()
        self.events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self.conversions: deque[Conversion] = deque(maxlen=OPERATIONS_KEPT)
        self.decisions: deque[tuple[float, Decision]] = deque(maxlen=DECISIONS_KEPT)
        self.placements: OrderedDict[str, Placed] = OrderedDict()
        self.running_since: dict[str, float] = {}
        self.events_lost = 0
        self.reasons: dict[int, str] = {}  # operation → why it was begun
        self._raw: dict[str, Any] = {}
        self._entries: dict[str, dict[Any, dict[str, Any]]] = {}
        self._seq: int | None = None
        self._read: Cluster | None = None
        self._requests: dict[str, Request] | None = None
        self._numbers = count()

    # --- what comes in

    def apply(self, frame: FeedFrame) -> None:
        """Raises :class:`FeedError`; then a new snapshot is needed."""
        match frame:
            case FeedSnapshot():
                self._replace(frame.cluster)
                self._set_clock(frame.wall_s - frame.t)
                self._take_events(self._unseen(frame.events))
            case FeedDelta():
                if self._seq is None or frame.seq != self._seq + 1:
                    raise FeedError(f"frame {frame.seq} follows {self._seq}")
                self._change(frame)
                self.events_lost += frame.events_lost
                self._take_events(frame.events)
        self._seq = frame.seq
        self._moved(frame.t)

    def show(self, picture: RecordingLine, wall_s: float | None) -> None:
        """The next line of a recording."""
        self._replace(picture.cluster)
        self.wall_s = wall_s
        self._take_events(picture.events)
        self._moved(picture.t)

    # --- what there is

    @property
    def known(self) -> bool:
        return bool(self._raw)

    @property
    def cluster(self) -> Cluster:
        if self._read is None:
            self._read = read(self.raw())
        return self._read

    def raw(self) -> dict[str, Any]:
        """As the node shows it."""
        lists = {key: list(entries.values()) for key, entries in self._entries.items()}
        return {**self._raw, **lists}

    def clock(self, t: float) -> str:
        """When ``t`` was: local time, or for virtual time what has passed."""
        if self.wall_s is not None:
            return strftime("%H:%M:%S", localtime(self.wall_s + t))
        minutes, second = divmod(max(0, int(t)), 60)
        return f"{minutes // 60:02}:{minutes % 60:02}:{second:02}"

    def ago(self, t: float) -> str:
        return duration(self.t - t)

    def request(self, name: str) -> Request | None:
        if self._requests is None:
            self._requests = {request.request: request for request in self.cluster.requests}
        return self._requests.get(name)

    def progress(self, name: str) -> float | None:
        """Of a running request: its layers, or where they are unknown the predicted time."""
        request = self.request(name)
        if request is None:
            return None
        if request.layers and request.layers_done is not None:
            return request.layers_done / request.layers
        since = self.running_since.get(name)
        if since is None or not request.predicted_s:
            return None
        return min(1.0, (self.t - since) / request.predicted_s)

    # --- frames

    def _replace(self, cluster: dict[str, Any]) -> None:
        self._check(cluster)
        self._raw, self._entries = {}, {}
        self._put(cluster)

    def _put(self, values: dict[str, Any]) -> None:
        for key, value in values.items():
            name = ENTRY_NAMES.get(key)
            if name is None:
                self._raw[key] = value
                continue
            try:
                self._entries[key] = {entry[name]: entry for entry in value}
            except (TypeError, KeyError) as error:
                raise FeedError(f"this is no cluster: {key}: {error}") from error

    def _change(self, delta: FeedDelta) -> None:
        put = {key: changes.put for key, changes in delta.entries.items()}
        self._check({**put, **delta.changed})
        self._put(delta.changed)
        for key, changes in delta.entries.items():
            name, entries = ENTRY_NAMES.get(key), self._entries.get(key)
            if name is None or entries is None:
                raise FeedError(f"entries of {key} change, which has none")
            for gone in changes.drop:
                entries.pop(gone, None)
            for entry in changes.put:
                if name not in entry:
                    raise FeedError(f"an entry of {key} has no {name}")
                entries[entry[name]] = entry

    def _check(self, part: dict[str, Any]) -> None:
        """What comes in is checked at once, so that pages can rely on it."""
        try:
            read(part)
        except msgspec.ValidationError as error:
            raise FeedError(f"this is no cluster: {error}") from error

    def _set_clock(self, wall_s: float) -> None:
        """A node that was restarted has another clock: what was seen before moves onto it."""
        before, self.wall_s = self.wall_s, wall_s
        if before is None or abs(before - wall_s) < SAME_CLOCK_S:
            return
        shift_s = before - wall_s
        self.history.shift(shift_s)
        self.running_since.clear()
        self.recent = Recent()
        self.events = deque(
            (replace(event, t=event.t + shift_s) for event in self.events), EVENTS_KEPT
        )
        self.conversions = deque(
            (c._replace(t=c.t + shift_s) for c in self.conversions), OPERATIONS_KEPT
        )
        self.decisions = deque(((t + shift_s, d) for t, d in self.decisions), DECISIONS_KEPT)
        self._happened(self.t + shift_s, "NodeRestarted", {})

    def _unseen(self, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A snapshot brings the last events along, also to those who saw them."""
        if not self.events:
            return events
        last = self.events[-1].t
        times = ((event, event.get("t")) for event in events)
        return [e for e, t in times if not (isinstance(t, int | float) and t <= last)]

    def _moved(self, t: float) -> None:
        self.t = t
        self._read = self._requests = None
        self.revision += 1
        if self.history.due(t):
            self.history.add(t, self.cluster)
            self._note_running()

    def _note_running(self) -> None:
        running = {worker.running[0] for worker in self.cluster.workers if worker.running}
        self.running_since = {name: self.running_since.get(name, self.t) for name in running}

    # --- events

    def _take_events(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            kind, t = event.get("type"), event.get("t", self.t)
            if not isinstance(kind, str) or not isinstance(t, int | float):
                raise FeedError("an event has no type or time")
            self._happened(t, kind, event)

    def _happened(self, t: float, kind: str, event: dict[str, Any]) -> None:
        self.events.append(Event(next(self._numbers), t, kind, describe(kind, event)))
        self.recent.note(t, kind, event)
        self._remember(t, kind, event)

    def _remember(self, t: float, kind: str, event: dict[str, Any]) -> None:
        try:
            match kind:
                case "Placed":
                    placed = msgspec.convert(event, Placed)
                    self.placements[placed.request] = placed
                    if len(self.placements) > PLACEMENTS_KEPT:
                        self.placements.popitem(last=False)
                case "Decided":
                    self.decisions.append((t, msgspec.convert(event, Decision)))
                case "Converting":
                    self.reasons[event["operation"]] = self._why(t, event["kind"])
                case "Converted":
                    converted = msgspec.convert(event, Converted)
                    reason = self.reasons.pop(converted.operation, "")
                    self.conversions.append(Conversion(t, converted, reason))
        except (msgspec.ValidationError, KeyError) as error:
            raise FeedError(f"an event {kind} cannot be read: {error}") from error

    def _why(self, t: float, kind: str) -> str:
        """The decision that a conversion came with; without one it was asked for by a person."""
        if self.decisions:
            at, decision = self.decisions[-1]
            if at == t and decision.verdict == kind:
                return decision.reason
        return "asked for by hand"
