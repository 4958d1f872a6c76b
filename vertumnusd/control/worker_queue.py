"""What a serving worker has to do: the requests dispatched to it, and those that wait for it.

It exists from Exposed to Withdrawn. A worker is given the request it runs and one ahead; the rest
waits here, where a cancel, a loss or a better prefix can still reach it. Where leads pause long
prefills for shorter ones, only those count that the worker would run first, and a few that make a
pack are not too many: so a short request is given to a worker that has long ones already.

Requests wait in the order of their *turn*: under policy "paper" that of their arrival, under "ours"
predicted seconds plus ``AGEING`` times the time of arrival. So the shortest goes first, and none is
overtaken by what arrives more than 1/AGEING of its own prefill time after it.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from vertumnusd.control.fleet import Worker
from vertumnusd.control.homes import Span
from vertumnusd.control.placement import Wait
from vertumnusd.control.request import Request
from vertumnusd.control.settings import Settings

DISPATCHED_MAX: Final = 2  # the running request and one ahead
PAUSING_MAX: Final = 12  # where leads pause: four that wait, and a pack of eight …
AHEAD_STEPS: Final = 2  # … which may take so many steps together
AGEING: Final = 0.1  # seconds of prefill time that a second of waiting makes up for


class Blocked(Enum):
    """Why the first waiting request of a worker cannot be dispatched, in the operator's words."""

    HOME = "home full"
    DECODE = "decode pool full"
    REFUSED = "refused by its ranks: no room"


class Refusal(NamedTuple):
    """Homes that had no room for a chain of ``blocks`` that the controller had counted on."""

    span: Span
    blocks: int


@dataclass(frozen=True)
class Discipline:
    """In what order a queue is served, and what counts as its q."""

    shortest_first: bool
    remaining: bool  # of the dispatched ones counts what is left, else their whole times
    pausing: bool = False  # the worker runs the shortest of those dispatched first …
    step_ns: int = 200_000_000  # … at a border between steps of this length

    @staticmethod
    def of(settings: Settings) -> Discipline:
        return Discipline(
            settings.does("shortest-first"),
            settings.does("remaining"),
            settings.does("pause"),
            round(settings.step_s * 1e9),
        )

    def turn(self, request: Request, service_s: float) -> float:
        """The smallest is served first."""
        if self.shortest_first:
            return service_s + AGEING * request.accepted_at
        return request.arrival


@dataclass(slots=True, eq=False)
class WorkerQueue:
    """``waiting`` is in order, and only its first request is ever dispatched.

    Predicted times are kept in whole nanoseconds, so that their sum returns to exactly zero.
    """

    worker: Worker
    discipline: Discipline
    waiting: list[Request] = field(default_factory=list)
    _turns: list[float] = field(default_factory=list)  # of those that wait, and their times:
    _times_ns: list[int] = field(default_factory=list)  # apart, as they are asked for very often
    fetching: list[Request] = field(default_factory=list)  # those that will wait, with a prefix
    dispatched: list[Request] = field(default_factory=list)
    blocked: Blocked | None = None
    refusal: Refusal | None = None  # the last one; it counts while ``blocked`` is REFUSED
    reserved_ns: int = 0
    input_tokens: int = 0  # of the prefills that it has finished
    cached_tokens: int = 0
    given_ns: int = 0  # of the dispatched requests
    free_at_ns: int = 0  # when all of these are predicted to be over

    @property
    def queue_s(self) -> float:
        """The sum of the predicted times of the unfinished requests."""
        return self.reserved_ns / 1e9

    @property
    def ready(self) -> bool:
        """A dispatch can be tried: the worker takes one more and nothing is known to forbid it."""
        return len(self.waiting) > 0 and self.blocked is None and self._takes_one()

    def _takes_one(self) -> bool:
        if len(self.dispatched) < DISPATCHED_MAX or not self.discipline.pausing:
            return len(self.dispatched) < DISPATCHED_MAX
        first_ns = self._times_ns[0]
        ahead_ns = [r.predicted_ns for r in self.dispatched if r.predicted_ns <= first_ns]
        pack_ns = AHEAD_STEPS * self.discipline.step_ns
        few = len(ahead_ns) < DISPATCHED_MAX or sum(ahead_ns) + first_ns <= pack_ns
        return few and len(self.dispatched) < PAUSING_MAX

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.dispatched or self.reserved_ns)

    @property
    def queued(self) -> list[Request]:
        """Those not dispatched."""
        return [*self.waiting, *self.fetching]

    # --- q and n of placement

    @property
    def load_ns(self) -> int:
        """No request waits less than until then, or than for so long (see ``Discipline``).

        Where leads pause it may wait less, but still for a step, and then it delays another one.
        """
        if self.discipline.remaining:
            return self.free_at_ns
        return self.given_ns if self.discipline.shortest_first else self.reserved_ns

    def wait_of(self, now_ns: int, turn: float, service_ns: int | None) -> Wait:
        """q and n for a request of this turn, and of so long a prefill, that arrives now.

        Without a length it goes behind all that were dispatched.
        """
        ahead_ns, behind = self._wait_of_given(now_ns, service_ns)
        if not self.waiting and not self.fetching:
            return ahead_ns / 1e9, behind
        if not self.discipline.shortest_first:
            return (ahead_ns + self.reserved_ns - self.given_ns) / 1e9, behind
        first_behind = bisect(self._turns, turn)
        ahead_ns += sum(self._times_ns[:first_behind])
        before_ns = [r.predicted_ns for r in self.fetching if r.turn <= turn]
        behind += len(self._turns) - first_behind + len(self.fetching) - len(before_ns)
        return (ahead_ns + sum(before_ns)) / 1e9, behind

    def _wait_of_given(self, now_ns: int, service_ns: int | None) -> tuple[int, int]:
        """The same, of the dispatched ones alone.

        Where leads pause, longer ones let the request go first, after a step or two. How much of
        each is left is not known, so it waits for them all if that is less than to delay them.
        """
        left_ns = max(0, self.free_at_ns - now_ns) if self.discipline.remaining else self.given_ns
        if not self.discipline.pausing or service_ns is None or left_ns <= self.discipline.step_ns:
            return left_ns, 0
        shorter_ns = [r.predicted_ns for r in self.dispatched if r.predicted_ns <= service_ns]
        ahead_ns = self.discipline.step_ns + sum(shorter_ns)
        longer = len(self.dispatched) - len(shorter_ns)
        return (ahead_ns, longer) if ahead_ns + longer * service_ns < left_ns else (left_ns, 0)

    def running_ns(self, now_ns: int) -> int:
        """What is left of the first of the dispatched; of all of them, where they may be paused."""
        if not self.dispatched:
            return 0
        ahead_ns = 0 if self.discipline.pausing else self.given_ns - self.dispatched[0].predicted_ns
        return max(0, self.free_at_ns - ahead_ns - now_ns)

    # --- requests come and go

    def add(self, request: Request, service_s: float) -> None:
        """Reserve the request's time, and have it wait for its turn."""
        self._predict(request, service_s)
        self._line_up(request)

    def hold(self, request: Request, service_s: float) -> None:
        """Reserve the request's time; it lines up when it is let go."""
        self._predict(request, service_s)
        request.turn = self.discipline.turn(request, service_s)
        self.fetching.append(request)

    def let_go(self, request: Request) -> None:
        self.fetching.remove(request)
        self._line_up(request)

    def predict(self, request: Request, service_s: float, *, may_move: bool) -> None:
        """Predict the first one's time anew. It may no longer be the first then."""
        self._leave(0)
        self._predict(request, service_s)
        if may_move:
            request.turn = self.discipline.turn(request, service_s)
        stays_first = not self._turns or request.turn <= self._turns[0]
        self._stand(request, 0 if stays_first else bisect(self._turns, request.turn))

    def dispatch_first(self, now_ns: int) -> None:
        request = self._leave(0)
        self.dispatched.append(request)
        self.given_ns += request.predicted_ns
        self.free_at_ns = max(self.free_at_ns, now_ns) + request.predicted_ns

    def finish(self, now_ns: int, request: Request) -> None:
        """The prefill of a dispatched request is over; the next one begins, or goes on.

        Where leads pause, any of the others may have been begun. That the worker was never idle
        says when all will be over, whatever it ran first; and the longest alone may be half done.
        """
        free_at_ns = self.free_at_ns
        self.remove(request)
        longest_ns = 0
        if self.discipline.pausing and self.dispatched:
            longest_ns = max(request.predicted_ns for request in self.dispatched)
        least_ns, most_ns = now_ns + self.given_ns - longest_ns, now_ns + self.given_ns
        self.free_at_ns = min(max(free_at_ns, least_ns), most_ns)

    def take_back(self, request: Request, span: Span) -> None:
        """A dispatched request waits again, and the worker with it until its home has room."""
        self._undo_dispatch(request)
        self._line_up(request)
        self.blocked, self.refusal = Blocked.REFUSED, Refusal(span, request.blocks)

    def remove(self, request: Request) -> None:
        """The request's prefill is finished, or it leaves: its reserved time is free."""
        if request in self.dispatched:
            self._undo_dispatch(request)
        elif request in self.fetching:
            self.fetching.remove(request)
        else:
            if self.waiting[0] is request:
                self.blocked = None
            self._leave(self.waiting.index(request))
        self.reserved_ns -= request.predicted_ns
        request.predicted_ns = 0

    def _predict(self, request: Request, service_s: float) -> None:
        """Reserve the request's time, in place of what it had reserved before."""
        self.reserved_ns -= request.predicted_ns
        request.predicted_ns = round(service_s * 1e9)
        self.reserved_ns += request.predicted_ns

    def _line_up(self, request: Request) -> None:
        """A new first one is tried, unless the ranks themselves have no room."""
        request.turn = self.discipline.turn(request, request.predicted_ns / 1e9)
        self._stand(request, bisect(self._turns, request.turn))
        if self.waiting[0] is request and self.blocked is not Blocked.REFUSED:
            self.blocked = None

    def _stand(self, request: Request, at: int) -> None:
        self.waiting.insert(at, request)
        self._turns.insert(at, request.turn)
        self._times_ns.insert(at, request.predicted_ns)

    def _leave(self, at: int) -> Request:
        del self._turns[at], self._times_ns[at]
        return self.waiting.pop(at)

    def _undo_dispatch(self, request: Request) -> None:
        self.dispatched.remove(request)
        self.given_ns -= request.predicted_ns
        self.free_at_ns -= request.predicted_ns

    def snapshot(self) -> dict[str, Any]:
        return {
            "queue_s": self.queue_s,
            "waiting": len(self.waiting),
            "fetching": len(self.fetching),
            "running": [request.name for request in self.dispatched],
            "blocked": self.blocked.value if self.blocked else "",
            "input_tokens": self.input_tokens,
            "cached_tokens": self.cached_tokens,
        }


def first_in_line(queues: Sequence[WorkerQueue]) -> WorkerQueue:
    """The queue whose first request has the first turn of all."""
    return min(queues, key=lambda queue: queue.waiting[0].order)
