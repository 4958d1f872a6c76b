"""What a serving worker has to do: the requests dispatched to it, and those that wait for it.

It exists from Exposed to Withdrawn. A worker is given the request it runs and one ahead; the rest
waits here, where a cancel, a loss or a better prefix can still reach it.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from vertumnusd.control.fleet import Worker
from vertumnusd.control.request import Request

DISPATCHED_MAX = 2  # the running request and one ahead


class Blocked(Enum):
    """Why the first waiting request of a worker cannot be dispatched, in the operator's words."""

    HOME = "home full"
    DECODE = "decode pool full"
    REFUSED = "refused by its ranks: no room"


class Refusal(NamedTuple):
    """A home that had no room for a chain of ``blocks`` that the controller had counted on."""

    home: int
    blocks: int


@dataclass(slots=True, eq=False)
class WorkerQueue:
    """``waiting`` is in order of arrival, and only its first request is ever dispatched.

    Predicted times are kept in whole nanoseconds, so that their sum returns to exactly zero.
    """

    worker: Worker
    waiting: list[Request] = field(default_factory=list)
    dispatched: list[Request] = field(default_factory=list)
    blocked: Blocked | None = None
    refusal: Refusal | None = None  # the last one; it counts while ``blocked`` is REFUSED
    reserved_ns: int = 0
    input_tokens: int = 0  # of the prefills that it has finished
    cached_tokens: int = 0

    @property
    def queue_s(self) -> float:
        """q_w: the sum of the predicted times of the unfinished requests."""
        return self.reserved_ns / 1e9

    @property
    def ready(self) -> bool:
        """A dispatch can be tried: the worker takes one more and nothing is known to forbid it."""
        takes_one = len(self.dispatched) < DISPATCHED_MAX
        return takes_one and len(self.waiting) > 0 and self.blocked is None

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.dispatched or self.reserved_ns)

    def predict(self, request: Request, service_s: float) -> None:
        """Reserve the request's time, in place of what it had reserved before."""
        self.reserved_ns -= request.predicted_ns
        request.predicted_ns = round(service_s * 1e9)
        self.reserved_ns += request.predicted_ns

    def wait(self, request: Request) -> None:
        """Queue the request. A new first one is tried, unless the ranks themselves have no room."""
        insort(self.waiting, request, key=lambda waiting: waiting.arrival)
        if self.waiting[0] is request and self.blocked is not Blocked.REFUSED:
            self.blocked = None

    def dispatch_first(self) -> None:
        self.dispatched.append(self.waiting.pop(0))

    def take_back(self, request: Request, home: int) -> None:
        """A dispatched request waits again, and the worker with it until that home has room."""
        self.dispatched.remove(request)
        self.wait(request)
        self.blocked, self.refusal = Blocked.REFUSED, Refusal(home, request.blocks)

    def remove(self, request: Request) -> None:
        """The request's prefill is finished, or it leaves: its reserved time is free."""
        self.reserved_ns -= request.predicted_ns
        request.predicted_ns = 0
        if request in self.dispatched:
            self.dispatched.remove(request)
            return
        if self.waiting[0] is request:
            self.blocked = None
        self.waiting.remove(request)

    def snapshot(self) -> dict[str, Any]:
        return {
            "queue_s": self.queue_s,
            "waiting": len(self.waiting),
            "running": [request.name for request in self.dispatched],
            "blocked": self.blocked.value if self.blocked else "",
            "input_tokens": self.input_tokens,
            "cached_tokens": self.cached_tokens,
        }
