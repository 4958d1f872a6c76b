"""The baselines' rules: which of the fixed workers an arrival goes to.

``ByCost`` is the published placement (``control/placement.py``) over any fixed composition: with
one degree the homogeneous pool, with a length threshold the static split. The others are what
routers in use do, as their sources state it, and know nothing of degrees.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from vertumnusd.control.fleet import Worker
from vertumnusd.simulate.light import LightCluster
from vertumnusd.simulate.pools import Pool
from vertumnusd.simulate.traces import BLOCK_TOKENS, Arrival


class ByCost:
    """The smallest q + s. Inputs of at least ``threshold`` tokens go to the largest degree only,
    shorter ones to the others; None lets every worker take any input."""

    def __init__(self, workers: Sequence[Worker], threshold: int | None = None) -> None:
        largest = max(worker.degree for worker in workers)
        everyone = range(len(workers))
        self._threshold = threshold
        self._degrees = [worker.degree for worker in workers]
        self._long = {n for n in everyone if threshold is None or workers[n].degree == largest}
        self._short = {n for n in everyone if threshold is None or workers[n].degree < largest}
        self._long_groups, self._short_groups = (
            _by_degree(workers, members) for members in (self._long, self._short)
        )

    def choose(self, cluster: LightCluster, arrival: Arrival) -> int:
        is_long = self._threshold is None or arrival.input_tokens >= self._threshold
        groups = self._long_groups if is_long else self._short_groups
        members = self._long if is_long else self._short
        tokens, queue_s = arrival.input_tokens, cluster.predicted_s
        usable = arrival.blocks[: cluster.conditions.usable_blocks(tokens)]
        priced = []
        for group in groups:
            worker = min(group, key=queue_s.__getitem__)
            priced.append((queue_s[worker] + cluster.predict_s(worker, tokens, 0), worker))
        known_s: dict[tuple[int, int], float] = {}  # what depends on degree and prefix alone
        for worker, blocks in cluster.matched(usable).items():
            if worker in members:
                kind = self._degrees[worker], blocks
                service_s = known_s.get(kind)
                if service_s is None:
                    known_s[kind] = service_s = cluster.predict_s(worker, tokens, blocks)
                priced.append((queue_s[worker] + service_s, worker))
        return min(priced)[1]

    def ended(self, worker: int, arrival: Arrival) -> None:
        """It keeps no books of its own."""


class RoundRobin:
    """Each worker in turn."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, cluster: LightCluster, arrival: Arrival) -> int:
        worker = self._next % len(cluster.workers)
        self._next += 1
        return worker

    def ended(self, worker: int, arrival: Arrival) -> None:
        """Turns do not depend on what ends."""


class LeastLoaded:
    """The worker with the fewest unfinished requests."""

    def choose(self, cluster: LightCluster, arrival: Arrival) -> int:
        return _fewest(cluster)

    def ended(self, worker: int, arrival: Arrival) -> None:
        """The cluster itself counts what is unfinished."""


class CacheAware:
    """SGLang router's rule, on the router's own picture of each worker's cache.

    If loads differ by more than ``absolute`` requests and by a factor of ``relative``: the least
    loaded. Else, if the best match covers more than ``cache_threshold`` of the input: that
    worker. Else the worker with the smallest picture, taken to have most room.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        kv_blocks: int,
        *,
        cache_threshold: float,
        absolute: int,
        relative: float,
    ) -> None:
        self._cache_threshold, self._absolute, self._relative = cache_threshold, absolute, relative
        self._pictures = [Pool[int](worker.degree * kv_blocks) for worker in workers]

    def choose(self, cluster: LightCluster, arrival: Arrival) -> int:
        worker = self._choose(cluster, arrival)
        self._pictures[worker].use(arrival.blocks)
        return worker

    def _choose(self, cluster: LightCluster, arrival: Arrival) -> int:
        loads = [len(unfinished) for unfinished in cluster.unfinished]
        most, least = max(loads), min(loads)
        if most - least > self._absolute and most > self._relative * least:
            return loads.index(least)
        pictures = self._pictures
        matches = [picture.leading(arrival.blocks) for picture in pictures]
        best = max(matches)
        if best * BLOCK_TOKENS > self._cache_threshold * arrival.input_tokens:
            return matches.index(best)
        return min(range(len(pictures)), key=lambda worker: len(pictures[worker]))

    def ended(self, worker: int, arrival: Arrival) -> None:
        """The router's picture changes on routing only."""


class OverlapCost:
    """Dynamo's rule: the smallest ``weight``·(blocks to prefill) + active blocks.

    Blocks to prefill are those of the request that the worker has not cached, and those still
    waiting there; active blocks are of all its unfinished requests, this one included.
    """

    def __init__(self, workers: int, weight: float) -> None:
        self._weight = weight
        self._to_prefill = [0.0] * workers
        self._active = [0.0] * workers
        self._added: dict[int, list[tuple[float, float]]] = {n: [] for n in range(workers)}

    def choose(self, cluster: LightCluster, arrival: Arrival) -> int:
        needed = arrival.input_tokens / BLOCK_TOKENS
        usable = arrival.blocks[: cluster.conditions.usable_blocks(arrival.input_tokens)]
        matched = cluster.matched(usable)
        fresh = [needed - matched.get(n, 0) for n in range(len(self._active))]
        costs = [
            self._weight * (waiting + own) + active
            for waiting, own, active in zip(self._to_prefill, fresh, self._active, strict=True)
        ]
        worker = costs.index(min(costs))
        self._to_prefill[worker] += fresh[worker]
        self._active[worker] += needed
        self._added[worker].append((fresh[worker], needed))
        return worker

    def ended(self, worker: int, arrival: Arrival) -> None:
        fresh, needed = self._added[worker].pop(0)
        self._to_prefill[worker] -= fresh
        self._active[worker] -= needed


def _by_degree(workers: Sequence[Worker], members: Collection[int]) -> list[list[int]]:
    degrees = sorted({workers[n].degree for n in members})
    return [[n for n in sorted(members) if workers[n].degree == degree] for degree in degrees]


def _fewest(cluster: LightCluster) -> int:
    loads = [len(unfinished) for unfinished in cluster.unfinished]
    return loads.index(min(loads))
