"""One split or merge as a machine (section 6 of the method), and all that are under way.

    DRAIN ── no lead owes anything ──► PARK ── all parked ──► ADOPT ── all adopted ──► EXPOSED
      │                                 │                       │
      │ a rank is lost, or the deadline └──────────┬────────────┘
      ▼                                            ▼ a rank is lost, or the deadline
    ROLLED_BACK: those left serve on,   ROLLED_BACK: the workers of before adopt
    under the epoch they have           again, under new epochs

At the start no more is dispatched to the participants, and what waits for them is placed elsewhere
at once; what they run, they finish. No KV moves: a worker contains whole homes, and these keep
their blocks. Operations on different ranks do not know of each other: several can be under way.

An operation ends with EXPOSED or ROLLED_BACK; what is adopted again after a rollback serves
as soon as its ranks are there, like any worker that lost a rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from vertumnusd.control.errors import IllegalEvent
from vertumnusd.control.fleet import Fleet, Worker, WorkerState, parts
from vertumnusd.control.scheduler import Scheduler
from vertumnusd.control.settings import Settings
from vertumnusd.messages import (
    ControlCommand,
    Converted,
    Converting,
    Drained,
    DrainWorker,
    Merge,
    Park,
    Parked,
    Resume,
    Split,
)

Change = tuple[tuple[Worker, ...], tuple[Worker, ...]]  # workers before, workers after


class Phase(Enum):
    DRAIN = "drain"
    PARK = "park"
    ADOPT = "adopt"
    EXPOSED = "exposed"
    ROLLED_BACK = "rolled back"


@dataclass(slots=True, eq=False)
class Operation:
    """Replaces the workers ``before`` by those ``after``, on the same ranks."""

    number: int
    before: tuple[Worker, ...]
    after: tuple[Worker, ...]
    began: float
    deadline: float
    predicted_drain_s: float
    phase: Phase = Phase.DRAIN
    drained: set[Worker] = field(default_factory=set)
    drained_at: float = 0.0
    parked_at: float = 0.0
    park_epoch: int = 0
    parked: set[int] = field(default_factory=set)

    @property
    def kind(self) -> str:
        return "split" if len(self.after) > len(self.before) else "merge"

    @property
    def ranks(self) -> set[int]:
        return {rank for worker in self.before for rank in worker.ranks}

    @property
    def present(self) -> tuple[Worker, ...]:
        """The workers that the fleet has while this is under way."""
        return self.after if self.phase is Phase.ADOPT else self.before

    def snapshot(self, now: float) -> dict[str, Any]:
        return {
            "operation": self.number,
            "kind": self.kind,
            "before": [worker.name for worker in self.before],
            "after": [worker.name for worker in self.after],
            "phase": self.phase.value,
            "elapsed_s": now - self.began,
            "predicted_drain_s": self.predicted_drain_s,
            **self._times_s(now),
        }

    def _times_s(self, now: float) -> dict[str, float]:
        """How long each phase took, or has taken up to now; those to come are left out."""
        ends = {Phase.DRAIN: self.drained_at, Phase.PARK: self.parked_at, Phase.ADOPT: now}
        times, begins = {}, self.began
        for phase, end in ends.items():
            end = now if phase is self.phase else end
            times[f"{phase.value}_s"] = end - begins
            if phase is self.phase:
                break
            begins = end
        return times


class Operations:
    """Splits and merges under way, by number. ``concluded`` is when the last one ended."""

    def __init__(self, settings: Settings, fleet: Fleet, scheduler: Scheduler) -> None:
        self.under_way: dict[int, Operation] = {}
        self.concluded = float("-inf")
        self._settings = settings
        self._fleet = fleet
        self._scheduler = scheduler
        self._number = 0

    # --- begin

    def change(self, event: Split | Merge) -> Change:
        """The workers before and after. Raises IllegalEvent if there can be no such operation."""
        worker, degrees = Worker(event.degree, event.base), self._settings.cp_degrees
        smaller = parts(worker, degrees) if worker.degree in degrees else ()
        if not smaller:
            raise IllegalEvent(f"{worker.name} has no parts: {worker.degree} is the least degree")
        change = ((worker,), smaller) if isinstance(event, Split) else (smaller, (worker,))
        self._check(change[0])
        return change

    def plan(self, now: float, change: Change) -> Converting:
        """What would begin now, as number 0."""
        return _converting(self._operation(now, 0, *change))

    def begin(
        self, now: float, before: tuple[Worker, ...], after: tuple[Worker, ...], window: int = 0
    ) -> list[ControlCommand]:
        """Raises IllegalEvent unless all workers ``before`` serve."""
        self._check(before)
        self._number += 1
        operation = self._operation(now, self._number, before, after)
        self.under_way[operation.number] = operation
        drains = [self._drain(operation, worker) for worker in before]
        return [_converting(operation, window), *drains, *self._scheduler.drain(now, before)]

    def _check(self, before: Iterable[Worker]) -> None:
        for worker in before:
            standing = self._fleet.standings.get(worker)
            if standing is None:
                raise IllegalEvent(f"there is no worker {worker.name}")
            if standing.state is not WorkerState.SERVING:
                raise IllegalEvent(f"{worker.name} does not serve, it is {standing.state.value}")

    def _operation(
        self, now: float, number: int, before: tuple[Worker, ...], after: tuple[Worker, ...]
    ) -> Operation:
        return Operation(
            number,
            before,
            after,
            began=now,
            deadline=now + self._settings.reconfiguration.drain_deadline_s,
            predicted_drain_s=max(self._scheduler.running_s(now, worker) for worker in before),
        )

    def _drain(self, operation: Operation, worker: Worker) -> DrainWorker:
        settings = self._settings.reconfiguration
        self._fleet.drain(worker)
        return DrainWorker(
            term=self._fleet.term,
            epoch=self._fleet.standings[worker].epoch,
            operation=operation.number,
            worker=worker.name,
            degree=worker.degree,
            base=worker.base,
            patience_s=settings.patience_s,
            deadline_s=settings.drain_deadline_s,
        )

    # --- what happens

    def drained(self, event: Drained) -> None:
        """A lead owes nothing; ``advance`` sees what follows. Of a past drain it is late."""
        operation = self.under_way.get(event.operation)
        if operation is None or event.term != self._fleet.term:
            return
        worker = Worker(event.degree, event.base)
        if worker not in operation.before:
            raise IllegalEvent(f"{worker.name} takes no part in operation {event.operation}")
        operation.drained.add(worker)

    def parked(self, now: float, event: Parked) -> list[ControlCommand]:
        """Count one rank's acknowledgement; after the last one the new workers adopt."""
        operation = self._of_epoch(event)
        if operation is None or operation.phase is not Phase.PARK:
            return []
        if event.rank not in operation.ranks:
            raise IllegalEvent(f"rank {event.rank} takes no part in operation {operation.number}")
        operation.parked.add(event.rank)
        if operation.parked < operation.ranks:
            return []
        operation.phase, operation.parked_at = Phase.ADOPT, now
        operation.deadline = now + self._settings.reconfiguration.switch_deadline_s
        return [*self._fleet.replace(operation.before, operation.after, at_once=True)]

    def exposed(self, now: float, workers: Iterable[Worker]) -> list[ControlCommand]:
        """These serve from now on; with all that are new, their operation is over."""
        workers = set(workers)
        done = [o for o in self.under_way.values() if workers.issuperset(o.after)]
        return [self._conclude(now, operation, Phase.EXPOSED, "") for operation in done]

    def lose(self, now: float, ranks: Iterable[int], reason: str) -> list[ControlCommand]:
        """The fleet has heard of it already. What they took part in is rolled back."""
        lost = set(ranks)
        hit = [o for o in self.under_way.values() if not lost.isdisjoint(o.ranks)]
        return [command for o in hit for command in self._roll_back(now, o, reason)]

    def advance(self, now: float) -> list[ControlCommand]:
        """Park what is drained. Asked after every event, since any may be the last one owed."""
        drained = [o for o in self.under_way.values() if self._is_drained(o)]
        return [command for operation in drained for command in self._park(now, operation)]

    # --- time

    def next_deadline(self) -> float | None:
        return min((o.deadline for o in self.under_way.values()), default=None)

    def tick(self, now: float) -> list[ControlCommand]:
        late = [o for o in self.under_way.values() if o.deadline <= now]
        return [c for o in late for c in self._roll_back(now, o, self._lateness(o))]

    def _lateness(self, operation: Operation) -> str:
        """With the key of ``[adaptation]`` that it is too long for."""
        phase, settings = operation.phase, self._settings.reconfiguration
        if phase is Phase.DRAIN:
            limit = f"drain_deadline_s = {settings.drain_deadline_s:g}"
        else:
            limit = f"switch_deadline_s = {settings.switch_deadline_s:g}"
        return f"{phase.value} took too long ({limit})"

    def snapshot(self, now: float) -> list[dict[str, Any]]:
        return [operation.snapshot(now) for operation in self.under_way.values()]

    # --- steps

    def _is_drained(self, operation: Operation) -> bool:
        """Every lead says so, and so do our own books: a dispatch may still be on its way."""
        if operation.phase is not Phase.DRAIN or operation.drained < set(operation.before):
            return False
        return self._scheduler.owes_nothing(operation.before)

    def _park(self, now: float, operation: Operation) -> list[ControlCommand]:
        operation.phase, operation.drained_at = Phase.PARK, now
        operation.deadline = now + self._settings.reconfiguration.switch_deadline_s
        operation.park_epoch = self._fleet.new_epoch()
        term, epoch = self._fleet.term, operation.park_epoch
        self._scheduler.retire(operation.before)
        return [
            *(self._fleet.park(worker) for worker in operation.before),
            *(Park(term, epoch, worker.degree, worker.base) for worker in operation.before),
        ]

    def _roll_back(self, now: float, operation: Operation, reason: str) -> list[ControlCommand]:
        phase, present = operation.phase, operation.present
        converted = self._conclude(now, operation, Phase.ROLLED_BACK, reason)
        if phase is Phase.DRAIN:
            return [converted, *self._resume(now, operation)]
        return [converted, *self._fleet.replace(present, operation.before, at_once=False)]

    def _resume(self, now: float, operation: Operation) -> list[ControlCommand]:
        """Those that did not lose a rank serve on."""
        standings = self._fleet.standings
        left = [w for w in operation.before if standings[w].state is WorkerState.DRAINING]
        resumes = []
        for worker in left:
            self._fleet.resume(worker)
            epoch = standings[worker].epoch
            resumes.append(Resume(self._fleet.term, epoch, worker.name, worker.degree, worker.base))
        return [*resumes, *(self._scheduler.resume(now, left) if left else ())]

    def _conclude(self, now: float, operation: Operation, end: Phase, reason: str) -> Converted:
        phase, operation.phase = operation.phase, end
        del self.under_way[operation.number]
        self.concluded = now
        drained_at = now if phase is Phase.DRAIN else operation.drained_at
        return Converted(
            operation=operation.number,
            kind=operation.kind,
            before=_names(operation.before),
            after=_names(operation.after),
            outcome=end.value,
            phase=phase.value,
            reason=reason,
            drain_s=drained_at - operation.began,
            switch_s=now - drained_at if end is Phase.EXPOSED else 0.0,
        )

    def _of_epoch(self, event: Parked) -> Operation | None:
        if event.term != self._fleet.term:
            return None
        found = (o for o in self.under_way.values() if o.park_epoch == event.epoch)
        return next(found, None)


def _converting(operation: Operation, window: int = 0) -> Converting:
    return Converting(
        operation.number,
        operation.kind,
        _names(operation.before),
        _names(operation.after),
        operation.predicted_drain_s,
        window,
    )


def _names(workers: Iterable[Worker]) -> tuple[str, ...]:
    return tuple(worker.name for worker in workers)
