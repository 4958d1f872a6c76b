"""The serving workers by degree, the one with the least load first.

Workers of the same degree that have the same prefix of a request cached differ in their queues
alone, so the first few of each kind are enough to find the smallest J (``placement.py``). Sets of
workers are masks, so they are found without looking at every worker.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from vertumnusd.control.fleet import Worker
from vertumnusd.control.placement import Kind

Place = tuple[int, Worker, int]  # in line: the load, whose it is, a bit at the first rank


class Loads:
    """Keeps serving workers in order of their loads (``WorkerQueue.load_ns``)."""

    def __init__(self, home_ranks: int) -> None:
        self._home_ranks = home_ranks
        self._load_ns: dict[Worker, int] = {}
        self._ordered: dict[int, list[Place]] = {}  # by degree
        self._bases: dict[int, int] = {}  # by degree: a bit for the first rank of each worker

    def open(self, worker: Worker, load_ns: int) -> None:
        """The worker serves."""
        self._load_ns[worker] = load_ns
        insort(self._ordered.setdefault(worker.degree, []), _place(load_ns, worker))
        self._bases[worker.degree] = self._bases.get(worker.degree, 0) | 1 << worker.base

    def close(self, worker: Worker) -> None:
        """It serves no more."""
        self._take(worker)
        del self._load_ns[worker]
        self._bases[worker.degree] ^= 1 << worker.base
        if not self._bases[worker.degree]:
            del self._bases[worker.degree], self._ordered[worker.degree]

    def change(self, worker: Worker, load_ns: int) -> None:
        """The worker's load is another one; of no interest if it does not serve."""
        if self._load_ns.get(worker, load_ns) != load_ns:
            self._take(worker)
            self._load_ns[worker] = load_ns
            insort(self._ordered[worker.degree], _place(load_ns, worker))

    def first(self) -> Worker | None:
        """A worker with the least load of all; None if none serves."""
        first: Place | None = None
        for ordered in self._ordered.values():
            if first is None or ordered[0] < first:
                first = ordered[0]
        return None if first is None else first[1]

    def serves(self, least_degree: int) -> bool:
        """Whether there is a worker of at least this degree."""
        return any(degree >= least_degree for degree in self._ordered)

    def kinds(
        self, prefixes: list[tuple[int, int, bool]], least_degree: int = 1, now_ns: int = 0
    ) -> list[Kind]:
        """The workers of each degree and prefix, those with the least load first.

        ``prefixes``: homes (a bit for the first rank of each), what they have, and whether that is
        only promised, longest first; a worker has what the best of its homes has. ``now_ns`` if
        loads are times of the clock.
        """
        kinds: list[Kind] = []
        for degree in self.degrees(least_degree):
            kinds += self.kinds_of(degree, prefixes, now_ns)
        return kinds

    def degrees(self, least_degree: int = 1) -> list[int]:
        """Those of the workers, from this one on."""
        return [degree for degree in self._ordered if degree >= least_degree]

    def kinds_of(
        self, degree: int, prefixes: list[tuple[int, int, bool]], now_ns: int = 0
    ) -> list[Kind]:
        """``kinds`` of one degree."""
        kinds: list[Kind] = []
        ordered, others = self._ordered[degree], self._bases[degree]
        for homes, length, promised in prefixes:
            workers = self._with(homes, degree) & others
            if workers:
                others ^= workers
                kinds.append(Kind(degree, length, _among(ordered, workers, now_ns), promised))
        if others:
            kinds.append(Kind(degree, 0, _among(ordered, others, now_ns)))
        return kinds

    def contains(self, base: int, ranks: int) -> bool:
        """Whether all these ranks are in one worker."""
        return any(w.base <= base and base + ranks <= w.base + w.degree for w in self._load_ns)

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
        del ordered[bisect_left(ordered, _place(self._load_ns[worker], worker))]


def _place(load_ns: int, worker: Worker) -> Place:
    return load_ns, worker, 1 << worker.base


def _among(ordered: list[Place], workers: int, now_ns: int) -> Iterator[tuple[float, Worker]]:
    for load_ns, worker, bit in ordered:
        if workers & bit:
            yield max(0, load_ns - now_ns) / 1e9, worker
