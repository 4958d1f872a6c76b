"""The serving workers by degree, the one with the shortest queue first.

Workers of the same degree that have the same prefix of a request cached differ in q alone, so one
of each kind is enough to find the smallest J (``placement.py``): the least loaded one. Sets of
workers are masks, so they are found without looking at every worker.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from vertumnusd.control.fleet import Worker

EVERYWHERE = -1  # a mask with every bit


class Loads:
    """Keeps in order what each serving worker has reserved, in nanoseconds."""

    def __init__(self, home_ranks: int) -> None:
        self._home_ranks = home_ranks
        self._reserved_ns: dict[Worker, int] = {}
        self._ordered: dict[int, list[tuple[int, Worker]]] = {}  # by degree
        self._bases: dict[int, int] = {}  # by degree: a bit for the first rank of each worker

    def open(self, worker: Worker, reserved_ns: int) -> None:
        """The worker serves."""
        self._reserved_ns[worker] = reserved_ns
        insort(self._ordered.setdefault(worker.degree, []), (reserved_ns, worker))
        self._bases[worker.degree] = self._bases.get(worker.degree, 0) | 1 << worker.base

    def close(self, worker: Worker) -> None:
        """It serves no more."""
        self._take(worker)
        del self._reserved_ns[worker]
        self._bases[worker.degree] ^= 1 << worker.base
        if not self._bases[worker.degree]:
            del self._bases[worker.degree], self._ordered[worker.degree]

    def change(self, worker: Worker, reserved_ns: int) -> None:
        """What the worker has reserved is another time now; of no interest if it does not serve."""
        if worker in self._reserved_ns:
            self._take(worker)
            self._reserved_ns[worker] = reserved_ns
            insort(self._ordered[worker.degree], (reserved_ns, worker))

    def shortest_ns(self) -> int:
        """The shortest queue of all; 0 if no worker serves."""
        return min((ordered[0][0] for ordered in self._ordered.values()), default=0)

    def least_loaded(
        self, prefixes: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[Worker, int, int]]:
        """The least loaded worker of each degree and prefix, what it has reserved, and the prefix.

        ``prefixes``: homes (a bit for the first rank of each) and what they have, longest first; a
        worker has what the best of its homes has.
        """
        for degree, ordered in self._ordered.items():
            others = self._bases[degree]
            for homes, length in (*prefixes, (EVERYWHERE, 0)):
                workers = self._with(homes, degree) & others
                if workers:
                    others ^= workers
                    reserved_ns, worker = _first(ordered, workers)
                    yield worker, reserved_ns, length

    def any_with(self, homes: int, degree: int) -> bool:
        """Whether one of these homes is in a worker of this degree."""
        return bool(self._with(homes, degree) & self._bases.get(degree, 0))

    def _with(self, homes: int, degree: int) -> int:
        """Where a worker of this degree has one of these homes: a bit at its first rank."""
        found = homes
        for offset in range(self._home_ranks, degree, self._home_ranks):
            found |= homes >> offset
        return found

    def _take(self, worker: Worker) -> None:
        ordered = self._ordered[worker.degree]
        del ordered[bisect_left(ordered, (self._reserved_ns[worker], worker))]


def _first(ordered: list[tuple[int, Worker]], workers: int) -> tuple[int, Worker]:
    return next(entry for entry in ordered if workers >> entry[1].base & 1)
