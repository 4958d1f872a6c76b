"""Workers: their geometry, the composition they form, and who serves.

Ranks are grouped on a lattice: a worker of degree C starts at a multiple of C, so two workers
are disjoint or one contains the other. The life of a worker:

    WITHDRAWN ── all ranks up ──► ADOPTING ── all adopted ──► SERVING ◄─ resume ─ DRAINING
      ▲   ▲     (a new epoch)        │                         │  │                 ▲ │  │
      │   └──── a rank is lost ──────┴─────────────────────────┘  └───── drain ─────┘ │  │
      ├──────── a rank is lost ◄──────────────────────────────────────────────────────┘  │
      └──────── a rank is lost ── PARKING ◄───────────────────────────────────── park ───┘
                                     └── replaced by other workers of the same ranks

Which worker drains and parks, and what replaces it, is decided in ``reconfig.py``. Epochs are
allocated here, for all workers together, and only ever rise; what a rank says about any other epoch
than its worker's present one is late and ignored.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
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
        return _name_of(self)

    def homes(self, home_ranks: int) -> range:
        """Base ranks of the homes inside this worker."""
        return range(self.base, self.base + self.degree, home_ranks)


@cache
def _name_of(worker: Worker) -> str:
    last = f"-{worker.base + worker.degree - 1}" if worker.degree > 1 else ""
    return f"CP{worker.degree}[{worker.base}{last}]"


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
    return lay_out(counts)


def parts(worker: Worker, cp_degrees: Iterable[int]) -> tuple[Worker, ...]:
    """What a split leaves: the workers of the next smaller degree; none at the smallest."""
    degree = max((degree for degree in cp_degrees if degree < worker.degree), default=0)
    if not degree:
        return ()
    return tuple(Worker(degree, base) for base in range(worker.base, worker.ranks.stop, degree))


def parent(worker: Worker, cp_degrees: Iterable[int]) -> Worker | None:
    """What a merge makes of it: the worker of the next larger degree; None at the largest."""
    degree = min((degree for degree in cp_degrees if degree > worker.degree), default=0)
    return Worker(degree, worker.base - worker.base % degree) if degree else None


def lay_out(counts: Counter[int]) -> tuple[Worker, ...]:
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
    DRAINING = "draining"
    PARKING = "parking"


@dataclass(slots=True)
class Standing:
    """Where a worker is in its life, and the epoch it has adopted or is adopting.

    ``together``: the workers that are exposed when all of them have adopted.
    """

    together: tuple[Worker, ...]
    state: WorkerState = WorkerState.WITHDRAWN
    epoch: int = 0
    adopted: set[int] = field(default_factory=set)


class Fleet:
    """The workers of the present composition, moved through their states."""

    def __init__(self, workers: Iterable[Worker]) -> None:
        self.term = 0
        self.epoch = 0
        self.standings = {worker: Standing((worker,)) for worker in workers}
        self._worker_of = {rank: worker for worker in self.standings for rank in worker.ranks}
        self._up: set[int] = set()

    def worker_of(self, rank: int) -> Worker:
        return self._worker_of[rank]

    def serving(self) -> list[Worker]:
        return [w for w, s in self.standings.items() if s.state is WorkerState.SERVING]

    def serves(self, worker: Worker) -> bool:
        standing = self.standings.get(worker)
        return standing is not None and standing.state is WorkerState.SERVING

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
        served = standing.state in (WorkerState.SERVING, WorkerState.DRAINING)
        standing.state = WorkerState.WITHDRAWN
        return [Withdrawn(self.term, standing.epoch, worker.name, reason)] if served else []

    def adopted(self, event: Adopted) -> list[Exposed]:
        """Count one rank's acknowledgement; the last one exposes the worker, or those together."""
        worker = self._worker_of[event.rank]
        standing = self.standings[worker]
        if (event.term, event.epoch) != (self.term, standing.epoch):
            return []
        if event.degree != worker.degree:
            raise IllegalEvent(f"rank {event.rank} adopted degree {event.degree} for {worker.name}")
        if standing.state is not WorkerState.ADOPTING:
            return []
        standing.adopted.add(event.rank)
        if not all(len(self.standings[w].adopted) == w.degree for w in standing.together):
            return []
        return [self._expose(worker) for worker in standing.together]

    def is_up(self, rank: int) -> bool:
        return rank in self._up

    # --- splits and merges

    def drain(self, worker: Worker) -> None:
        assert self.serves(worker)
        self.standings[worker].state = WorkerState.DRAINING

    def resume(self, worker: Worker) -> None:
        """Nothing has changed at its ranks, so it serves on under the epoch it has."""
        assert self.standings[worker].state is WorkerState.DRAINING
        self.standings[worker].state = WorkerState.SERVING

    def park(self, worker: Worker) -> Withdrawn:
        standing = self.standings[worker]
        assert standing.state is WorkerState.DRAINING
        standing.state = WorkerState.PARKING
        return Withdrawn(self.term, standing.epoch, worker.name, "parked to be split or merged")

    def new_epoch(self) -> int:
        self.epoch += 1
        return self.epoch

    def replace(
        self, before: Iterable[Worker], after: Iterable[Worker], *, at_once: bool
    ) -> list[AdoptWorker]:
        """Other workers of the same ranks take over, those whose ranks are up.

        ``at_once``: they are exposed when all of them have adopted, else each by itself.
        """
        for worker in before:
            del self.standings[worker]
        after = tuple(after)
        for worker in after:
            self.standings[worker] = Standing(after if at_once else (worker,))
            self._worker_of.update(dict.fromkeys(worker.ranks, worker))
        return [command for worker in after for command in self._adopt(worker)]

    def _expose(self, worker: Worker) -> Exposed:
        standing = self.standings[worker]
        standing.state, standing.together = WorkerState.SERVING, (worker,)
        return Exposed(self.term, standing.epoch, worker.name, worker.degree, worker.base)

    def _adopt(self, worker: Worker) -> list[AdoptWorker]:
        """Start the worker under a fresh epoch, once there is a term and all its ranks are up."""
        standing = self.standings[worker]
        ready = self.term and self._up.issuperset(worker.ranks)
        if not ready or standing.state is not WorkerState.WITHDRAWN:
            return []
        standing.state, standing.epoch = WorkerState.ADOPTING, self.new_epoch()
        standing.adopted.clear()
        return [AdoptWorker(self.term, standing.epoch, worker.degree, worker.base)]
