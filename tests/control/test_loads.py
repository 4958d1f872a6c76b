"""The workers of each kind by load, against looking at every worker."""

from __future__ import annotations

import random

import pytest

from vertumnusd.control.fleet import Worker
from vertumnusd.control.loads import Loads

WORKERS = [Worker(4, 0), Worker(4, 4), Worker(2, 8), Worker(2, 10), Worker(2, 12), Worker(2, 14)]
HOME_RANKS = 2


def naive(
    loads_ns: dict[Worker, int], prefixes: list[tuple[int, int, bool]], now_ns: int
) -> dict[tuple[int, int], list[tuple[float, Worker]]]:
    kinds: dict[tuple[int, int], list[tuple[int, Worker]]] = {}
    for worker, ns in loads_ns.items():
        homes = worker.homes(HOME_RANKS)
        cached = [length for mask, length, _ in prefixes if any(mask >> home & 1 for home in homes)]
        kinds.setdefault((worker.degree, max(cached, default=0)), []).append((ns, worker))
    return {k: [(max(0, ns - now_ns) / 1e9, w) for ns, w in sorted(v)] for k, v in kinds.items()}


@pytest.mark.parametrize("seed", range(100))
def test_every_kind_of_worker_is_in_order(seed):
    choose = random.Random(seed)
    loads, loads_ns = Loads(HOME_RANKS), {}
    for _ in range(60):
        worker = choose.choice(WORKERS)
        ns = choose.randrange(5)
        if worker not in loads_ns:
            loads.open(worker, ns)
            loads_ns[worker] = ns
        elif choose.random() < 0.2:
            loads.close(worker)
            del loads_ns[worker]
        else:
            loads.change(worker, ns)
            loads_ns[worker] = ns
        lengths = sorted(choose.sample(range(1, 9), choose.randrange(4)), reverse=True)
        prefixes = [
            (sum(1 << home for home in range(0, 16, 2) if choose.random() < 0.3), n, False)
            for n in lengths
        ]
        now_ns = choose.randrange(3)
        found = list(loads.kinds(prefixes, now_ns=now_ns))
        workers = {(kind.degree, kind.cached_tokens): list(kind.workers) for kind in found}
        assert workers == naive(loads_ns, prefixes, now_ns)
        assert len(found) == len(workers)


def test_the_queue_of_a_worker_that_does_not_serve_is_of_no_interest():
    loads = Loads(HOME_RANKS)
    loads.open(WORKERS[0], 5)
    loads.change(WORKERS[1], 1)
    assert [list(kind.workers) for kind in loads.kinds([])] == [[(5e-9, WORKERS[0])]]
