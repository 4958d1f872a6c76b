"""Workers that an operator takes out of service, and gives back.

    serving ── drain ──► draining ── its lead and our books owe nothing ──► drained
       ▲                     │                                                │
       └───────────────── undrain ◄───────────────────────────────────────────┘

To the fleet such a worker is DRAINING, so nothing else can begin with it. If it loses a rank
meanwhile and comes back, it is drained again: only the operator ends this. It has no deadline.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vertumnusd.control.errors import IllegalEvent
from vertumnusd.control.fleet import Fleet, Worker, WorkerState
from vertumnusd.control.scheduler import Scheduler
from vertumnusd.messages import ControlCommand, Drained, DrainWorker, Resume, WorkerDrained


@dataclass(slots=True)
class _Drain:
    number: int
    began: float
    lead_owes: bool = True
    over: bool = False


class Drains:
    def __init__(self, patience_s: float, fleet: Fleet, scheduler: Scheduler) -> None:
        self._patience_s = patience_s
        self._fleet = fleet
        self._scheduler = scheduler
        self._drains: dict[Worker, _Drain] = {}
        self._number = 0

    def drain(self, now: float, worker: Worker) -> list[ControlCommand]:
        """Raises IllegalEvent unless ``worker`` serves."""
        if not self._fleet.serves(worker):
            raise IllegalEvent(f"{worker.name} does not serve")
        self._drains[worker] = self._new(now)
        return self._begin(now, worker)

    def undrain(self, now: float, worker: Worker) -> list[ControlCommand]:
        """Raises IllegalEvent unless ``worker`` was drained by ``drain``."""
        if worker not in self._drains:
            raise IllegalEvent(f"{worker.name} is not drained")
        del self._drains[worker]
        standing = self._fleet.standings[worker]
        if standing.state is not WorkerState.DRAINING:
            return []  # it lost a rank, and serves when it is back
        self._fleet.resume(worker)
        term, epoch = self._fleet.term, standing.epoch
        resume = Resume(term, epoch, worker.name, worker.degree, worker.base)
        return [resume, *self._scheduler.resume(now, [worker])]

    def drained(self, event: Drained) -> None:
        """A lead owes nothing; ``advance`` sees what follows. Of a past drain it is late."""
        drain = self._drains.get(Worker(event.degree, event.base))
        if drain is not None and drain.number == event.operation:
            drain.lead_owes = False

    def advance(self, now: float) -> list[ControlCommand]:
        """Tell of those that are drained. Asked after every event: any may be the last one owed."""
        if not self._drains:
            return []
        done = [w for w, drain in self._drains.items() if self._is_done(w, drain)]
        for worker in done:
            self._drains[worker].over = True
        return [WorkerDrained(w.name, now - self._drains[w].began) for w in done]

    def exposed(self, now: float, workers: Iterable[Worker]) -> list[ControlCommand]:
        """Those of the workers that lost a rank while they were drained are drained again."""
        commands: list[ControlCommand] = []
        for worker in workers:
            if worker in self._drains:
                self._drains[worker] = self._new(now)
                commands += self._begin(now, worker)
        return commands

    def snapshot(self) -> list[dict[str, Any]]:
        return [{"worker": w.name, "drained": drain.over} for w, drain in self._drains.items()]

    def _new(self, now: float) -> _Drain:
        """Counted downwards from −1: the numbers of operations are above 0."""
        self._number -= 1
        return _Drain(self._number, now)

    def _begin(self, now: float, worker: Worker) -> list[ControlCommand]:
        self._fleet.drain(worker)
        command = DrainWorker(
            term=self._fleet.term,
            epoch=self._fleet.standings[worker].epoch,
            operation=self._drains[worker].number,
            worker=worker.name,
            degree=worker.degree,
            base=worker.base,
            patience_s=self._patience_s,
            deadline_s=0.0,
        )
        return [command, *self._scheduler.drain(now, [worker])]

    def _is_done(self, worker: Worker, drain: _Drain) -> bool:
        if drain.over or drain.lead_owes:
            return False
        return self._scheduler.owes_nothing([worker])
