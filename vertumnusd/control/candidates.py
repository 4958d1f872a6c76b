"""The splits and merges that could be begun now, and which of them disturb least.

The least predicted drain comes first, then the least KV traffic. With homes neither a split nor a
merge moves KV; what has to be copied or computed again are the prefixes that redirected requests
leave behind, hence fewest waiting tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import takewhile
from typing import NamedTuple

from vertumnusd.control.fleet import Fleet, Worker, lattice, parts
from vertumnusd.control.reconfig import Change
from vertumnusd.control.scheduler import Scheduler
from vertumnusd.control.settings import Settings


class Candidate(NamedTuple):
    """Changes of one kind, to be begun together, and the workers that they lead to."""

    kind: str  # "split" or "merge"
    changes: tuple[Change, ...]
    workers: tuple[Worker, ...]


DRAIN_SHARE = 1 / 20  # of a window: a merge that drains for longer waits for a better moment


class Candidates:
    def __init__(self, settings: Settings, fleet: Fleet, scheduler: Scheduler) -> None:
        self._cp_degrees = settings.cp_degrees
        self._most = settings.reconfiguration.max_operations
        self._drain_s = DRAIN_SHARE * settings.reconfiguration.window_s
        self._fleet = fleet
        self._scheduler = scheduler
        self._merged = [w for w in lattice(settings.cp_degrees, settings.ranks) if self._parts(w)]

    def splits(self, workers: Sequence[Worker]) -> list[Change]:
        there = [worker for worker in workers if self._fleet.serves(worker)]
        return [((worker,), self._parts(worker)) for worker in there if self._parts(worker)]

    def merges(self, workers: Sequence[Worker]) -> list[Change]:
        there = {worker for worker in workers if self._fleet.serves(worker)}
        return [(self._parts(w), (w,)) for w in self._merged if there.issuperset(self._parts(w))]

    def together(self, now: float) -> list[Candidate]:
        """One, two, four … and as many as possible of each kind and degree.

        No merge whose drain would be long: one of its workers would wait for the other.
        """
        workers = tuple(self._fleet.serving())
        found: list[Candidate] = []
        merges = [m for m in self.merges(workers) if self.disturbance(now, m)[0] <= self._drain_s]
        for kind, possible in (("split", self.splits(workers)), ("merge", merges)):
            for degree in sorted({before[0].degree for before, _ in possible}):
                changes = [change for change in possible if change[0][0].degree == degree]
                changes = sorted(changes, key=partial(self.disturbance, now))[: self._most]
                for count in _doubling(len(changes)):
                    chosen = tuple(changes[:count])
                    found.append(Candidate(kind, chosen, tuple(after(workers, chosen))))
        return found

    def roomy(self, now: float, least_degree: int) -> Change | None:
        """The merge, of all workers on its ranks at once, that makes one of ``least_degree``."""
        workers = [worker for worker in self._fleet.serving() if self._fleet.serves(worker)]
        degree = min(d for d in self._cp_degrees if d >= least_degree)
        possible = []
        for merged in (worker for worker in self._merged if worker.degree == degree):
            inside = tuple(w for w in workers if w.ranks[0] in merged.ranks)
            if sum(w.degree for w in inside) == degree:
                possible.append((inside, (merged,)))
        return min(possible, key=partial(self.disturbance, now), default=None)

    def disturbance(self, now: float, change: Change) -> tuple[float, int, Worker]:
        before, _ = change
        drain_s = max(self._scheduler.running_s(now, worker) for worker in before)
        waiting_tokens = sum(self._scheduler.waiting_tokens(worker) for worker in before)
        return drain_s, waiting_tokens, before[0]

    def _parts(self, worker: Worker) -> tuple[Worker, ...]:
        return parts(worker, self._cp_degrees)


def after(workers: Iterable[Worker], changes: Iterable[Change]) -> list[Worker]:
    """The workers that there are after the changes."""
    gone = {worker for before, _ in changes for worker in before}
    return [w for w in workers if w not in gone] + [w for _, new in changes for w in new]


def _doubling(most: int) -> Iterator[int]:
    """1, 2, 4 … and ``most``."""
    yield from takewhile(lambda count: count < most, (1 << n for n in range(most.bit_length())))
    yield most
