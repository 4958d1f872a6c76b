"""Workers: their geometry, the composition they form, and who serves.

Ranks are grouped on a lattice: a worker of degree C starts at a multiple of C, so two workers
are disjoint or one contains the other. The life of a worker (section 6 adds drain and park):

    WITHDRAWN ── all its ranks are up ──► ADOPTING ── all of them adopted ──► SERVING
        ▲         (a new epoch)              │                                   │
        └────────────── a rank is lost ──────┴───────────────────────────────────┘

Epochs are allocated here, for all workers together, and only ever rise; what a rank says about
any other epoch than its worker's present one is late and ignored.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from vertumnusd.control.errors import IllegalEvent
from vertumnusd.messages import Adopted, AdoptWorker, Exposed, Withdrawn


class Worker(NamedTuple):
    """The group of ``degree`` ranks from ``base`` on; printed ``CP4[0-3]``."""

    degree: int
    base: int

    @property
    def ranks(self) -> range:
        return range(self.base, self.base + self.degree)

    @property
    def name(self) -> str:
        last = f"-{self.base + self.degree - 1}" if self.degree > 1 else ""
        return f"CP{self.degree}[{self.base}{last}]"

    def homes(self, home_ranks: int) -> range:
        """Base ranks of the homes inside this worker."""
        return range(self.base, self.base + self.degree, home_ranks)


def lattice(cp_degrees: Iterable[int], ranks: int) -> tuple[Worker, ...]:
    """Every worker that can ever be: the aligned sets of each degree, smallest degree first."""
    return tuple(
        Worker(degree, base)
        for degree in sorted(cp_degrees)
        for base in range(0, ranks - degree + 1, degree)
    )


def parse_composition(text: str, cp_degrees: Sequence[int], ranks: int) -> tuple[Worker, ...]:
    """The workers that ``1CP2/2CP1`` stands for, largest degree on the lowest ranks.

    Raises ValueError, naming what is allowed.
    """
    counts: Counter[int] = Counter()
    for part in text.split("/"):
        found = re.fullmatch(r"([1-9][0-9]{0,5})CP([1-9][0-9]{0,5})", part.strip())
        if found is None:
            raise ValueError(f"composition {text!r}: {part!r} is not like 2CP{max(cp_degrees)}")
        counts[int(found[2])] += int(found[1])
    allowed = ", ".join(map(str, sorted(cp_degrees)))
    if unknown := sorted(counts.keys() - set(cp_degrees)):
        raise ValueError(f"composition {text!r}: no degree {unknown[0]}; degrees are {allowed}")
    if (used := sum(degree * count for degree, count in counts.items())) != ranks:
        raise ValueError(
            f"composition {text!r} uses {used} ranks of {ranks}: its degrees ({allowed}) must sum"
            f" up to {ranks}"
        )
    return _lay_out(counts)


def _lay_out(counts: Counter[int]) -> tuple[Worker, ...]:
    """Side by side, largest first: as each degree divides the next larger one, all are aligned."""
    workers: list[Worker] = []
    base = 0
    for degree in sorted(counts.elements(), reverse=True):
        workers.append(Worker(degree, base))
        base += degree
    return tuple(workers)


def composition_name(workers: Iterable[Worker]) -> str:
    """``1CP2/2CP1``: how many workers of which degree, largest degree first."""
    counts = Counter(worker.degree for worker in workers)
    return "/".join(f"{counts[degree]}CP{degree}" for degree in sorted(counts, reverse=True))


class WorkerState(Enum):
    WITHDRAWN = "withdrawn"
    ADOPTING = "adopting"
    SERVING = "serving"


@dataclass(slots=True)
class Standing:
    """Where a worker is in its life, and the epoch it has adopted or is adopting."""

    state: WorkerState = WorkerState.WITHDRAWN
    epoch: int = 0
    adopted: set[int] = field(default_factory=set)


class Fleet:
    """The workers of a composition, moved through their states by what happens to ranks."""

    def __init__(self, workers: Iterable[Worker]) -> None:
        self.term = 0
        self.epoch = 0
        self.standings = {worker: Standing() for worker in workers}
        self._worker_of = {rank: worker for worker in self.standings for rank in worker.ranks}
        self._up: set[int] = set()

    def worker_of(self, rank: int) -> Worker:
        return self._worker_of[rank]

    def seat(self, term: int) -> list[AdoptWorker]:
        """Take the seat for ``term``; a controller sits for one term only."""
        if term == self.term:
            return []
        if self.term or term < 1:
            raise IllegalEvent(f"seated for term {term} during term {self.term}")
        self.term = term
        return [command for worker in self.standings for command in self._adopt(worker)]

    def rank_up(self, rank: int) -> list[AdoptWorker]:
        self._up.add(rank)
        return self._adopt(self._worker_of[rank])

    def rank_down(self, rank: int, reason: str) -> list[Withdrawn]:
        """The rank's worker leaves service; nothing to tell if it was not exposed."""
        self._up.discard(rank)
        worker = self._worker_of[rank]
        standing = self.standings[worker]
        served = standing.state is WorkerState.SERVING
        standing.state = WorkerState.WITHDRAWN
        return [Withdrawn(self.term, standing.epoch, worker.name, reason)] if served else []

    def adopted(self, event: Adopted) -> list[Exposed]:
        """Count one rank's acknowledgement; the last one exposes the worker."""
        worker = self._worker_of[event.rank]
        standing = self.standings[worker]
        if (event.term, event.epoch) != (self.term, standing.epoch):
            return []
        if event.degree != worker.degree:
            raise IllegalEvent(f"rank {event.rank} adopted degree {event.degree} for {worker.name}")
        if standing.state is not WorkerState.ADOPTING:
            return []
        standing.adopted.add(event.rank)
        if len(standing.adopted) < worker.degree:
            return []
        standing.state = WorkerState.SERVING
        return [Exposed(self.term, standing.epoch, worker.name, worker.degree, worker.base)]

    def _adopt(self, worker: Worker) -> list[AdoptWorker]:
        """Start the worker under a fresh epoch, once there is a term and all its ranks are up."""
        standing = self.standings[worker]
        ready = self.term and self._up.issuperset(worker.ranks)
        if not ready or standing.state is not WorkerState.WITHDRAWN:
            return []
        self.epoch += 1
        standing.state, standing.epoch = WorkerState.ADOPTING, self.epoch
        standing.adopted.clear()
        return [AdoptWorker(self.term, self.epoch, worker.degree, worker.base)]
