"""The least loaded worker of each kind, against looking at every worker."""

from __future__ import annotations

import random

import pytest

from vertumnusd.control.fleet import Worker
from vertumnusd.control.loads import Loads

WORKERS = [Worker(4, 0), Worker(4, 4), Worker(2, 8), Worker(2, 10), Worker(2, 12), Worker(2, 14)]
HOME_RANKS = 2


def naive(
    reserved_ns: dict[Worker, int], prefixes: list[tuple[int, int]]
) -> set[tuple[Worker, int, int]]:
    best: dict[tuple[int, int], tuple[int, Worker]] = {}
    for worker, ns in reserved_ns.items():
        homes = worker.homes(HOME_RANKS)
        cached = [length for mask, length in prefixes if any(mask >> home & 1 for home in homes)]
        kind = worker.degree, max(cached, default=0)
        best[kind] = min(best.get(kind, (ns, worker)), (ns, worker))
    return {(worker, ns, length) for (_, length), (ns, worker) in best.items()}


@pytest.mark.parametrize("seed", range(100))
def test_every_kind_of_worker_has_its_least_loaded(seed):
    choose = random.Random(seed)
    loads, reserved_ns = Loads(HOME_RANKS), {}
    for _ in range(60):
        worker = choose.choice(WORKERS)
        ns = choose.randrange(5)
        if worker not in reserved_ns:
            loads.open(worker, ns)
            reserved_ns[worker] = ns
        elif choose.random() < 0.2:
            loads.close(worker)
            del reserved_ns[worker]
        else:
            loads.change(worker, ns)
            reserved_ns[worker] = ns
        lengths = sorted(choose.sample(range(1, 9), choose.randrange(4)), reverse=True)
        prefixes = [
            (sum(1 << home for home in range(0, 16, 2) if choose.random() < 0.3), n)
            for n in lengths
        ]
        found = list(loads.least_loaded(prefixes))
        assert set(found) == naive(reserved_ns, prefixes)
        assert len(found) == len(set(found))
        assert loads.shortest_ns() == min(reserved_ns.values(), default=0)


def test_the_queue_of_a_worker_that_does_not_serve_is_of_no_interest():
    loads = Loads(HOME_RANKS)
    loads.open(WORKERS[0], 5)
    loads.change(WORKERS[1], 1)
    assert list(loads.least_loaded([])) == [(WORKERS[0], 5, 0)]
