"""What was decided and why, for as long as people may ask: bounded, in the order that it happened.

The controller's commands carry the terms that decided them; here they are kept, as they come by:
the last requests with all that happened to them, and the last decisions and conversions.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import msgspec

from vertumnusd.messages import (
    Abort,
    Answer,
    ControlCommand,
    Converted,
    Converting,
    Decided,
    Dispatch,
    Failed,
    Finished,
    Lost,
    Placed,
    Reject,
)

REQUESTS = 4_096
EVENTS_OF_A_REQUEST = 32  # the first ones; a request is placed again and again only in trouble
CONVERSIONS = 256

Entry = dict[str, Any]  # JSON-ready, with ``at_s``, on the clock of the node


class Records:
    """Owned by the daemon's one thread."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._requests: OrderedDict[str, list[Entry]] = OrderedDict()
        self._conversions: deque[list[Entry]] = deque(maxlen=CONVERSIONS)
        self._decided: Entry | None = None

    def report(self, command: ControlCommand) -> None:
        """The controller commanded this."""
        match command:
            case Placed() | Dispatch() | Lost() | Reject() | Abort():
                self._note_request(command.request, command)
            case Decided():
                self._decided = self._entry(command)
            case Converting():
                by = self.last_decision() if command.window else []
                self._conversions.append([*by, self._entry(command)])
            case Converted():
                self._end(command)

    def answered(self, request: str, answer: Answer) -> None:
        """A gateway told its client."""
        if isinstance(answer, Finished | Failed):
            self._note_request(request, answer)

    def request(self, name: str) -> list[Entry]:
        """All that happened to it, the first first; empty if it is not known.

        ``name`` is the id of an answer; one that answers several prompts numbers its requests.
        """
        return self._requests.get(name) or self._requests.get(f"{name}-0", [])

    def last_conversion(self) -> list[Entry]:
        """The decision that began it, unless a hand did; its beginning, and its end if it ended."""
        return self._conversions[-1] if self._conversions else []

    def last_decision(self) -> list[Entry]:
        return [self._decided] if self._decided is not None else []

    def _end(self, converted: Converted) -> None:
        for entries in reversed(self._conversions):
            if entries[-1].get("operation") == converted.operation:
                entries.append(self._entry(converted))
                return

    def _note_request(self, request: str, event: ControlCommand | Answer) -> None:
        entries = self._requests.setdefault(request, [])
        if len(entries) < EVENTS_OF_A_REQUEST:
            entries.append(self._entry(event))
        if len(self._requests) > REQUESTS:
            self._requests.popitem(last=False)

    def _entry(self, event: ControlCommand | Answer) -> Entry:
        return {"at_s": self._now(), **msgspec.to_builtins(event)}
