"""A light virtual cluster for the baselines: fixed workers, first come first served, own pools.

The same arrivals, prefill times, noise and memory as the cluster that the controller drives
(``virtual.py``), but a routing rule of a few lines instead of the controller. A request is bound on
arrival; its prefix is looked up when it starts; its blocks are stored when it ends, in the pool of
its worker (``degree`` times the memory of a GPU, as engines own KV at the worker's degree).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Protocol

from vertumnusd.control.fleet import Worker, composition_name
from vertumnusd.control.prefix_trie import bits
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.outcome import Outcome
from vertumnusd.simulate.pools import Pool
from vertumnusd.simulate.profiles import profile
from vertumnusd.simulate.traces import BLOCK_TOKENS, Arrival


class Router(Protocol):
    """Chooses a worker, by its index, for each arrival; hears when a prefill is over."""

    def choose(self, cluster: LightCluster, arrival: Arrival) -> int: ...

    def ended(self, worker: int, arrival: Arrival) -> None: ...


class LightCluster:
    """``holders`` has, for each block, a bit for every worker that has it in its pool."""

    def __init__(
        self, policy: str, workers: Sequence[Worker], router: Router, conditions: Conditions
    ) -> None:
        self.workers = workers
        self.conditions = conditions
        self.predicted_s = [0.0] * len(workers)  # q: of the unfinished requests
        self.unfinished: list[deque[int]] = [deque() for _ in workers]
        self.holders: dict[int, int] = {}
        self._policy = policy
        self._profile = profile(conditions.profile)
        self._router = router
        self._reserved_s: dict[int, float] = {}
        self._pools = [Pool[int](w.degree * conditions.kv_blocks) for w in workers]
        self._running: list[tuple[float, int]] = []  # (end, worker)

    def run(self, arrivals: Sequence[Arrival]) -> Outcome:
        self._arrivals = arrivals
        tokens = [arrival.input_tokens for arrival in arrivals]
        self._outcome = Outcome.empty(self._policy, self.conditions.ranks, tokens)
        self._outcome.composition = composition_name(self.workers)
        for n, arrival in enumerate(arrivals):
            while self._running and self._running[0][0] <= arrival.at_s:
                self._end(*heappop(self._running))
            self._arrive(n, arrival)
        while self._running:
            self._end(*heappop(self._running))
        return self._outcome

    def matched(self, blocks: Sequence[int]) -> dict[int, int]:
        """Leading blocks of the chain in each worker's pool; workers without any are left out."""
        alive = -1
        lengths: dict[int, int] = {}
        depth = 0
        for block in blocks:
            holders = self.holders.get(block, 0)
            if depth == 0:
                alive = holders
            elif ended := alive & ~holders:
                lengths.update(dict.fromkeys(bits(ended), depth))
                alive &= holders
            if not alive:
                return lengths
            depth += 1
        if depth:
            lengths.update(dict.fromkeys(bits(alive), depth))
        return lengths

    def predict_s(self, worker: int, input_tokens: int, cached_blocks: int) -> float:
        cached = cached_blocks * BLOCK_TOKENS
        degree = self.workers[worker].degree
        return self._profile.predicted.predict_s(degree, input_tokens - cached, cached)

    def _arrive(self, n: int, arrival: Arrival) -> None:
        worker = self._router.choose(self, arrival)
        cached = self._pools[worker].leading(self._usable(arrival))
        self._reserved_s[n] = self.predict_s(worker, arrival.input_tokens, cached)
        self.predicted_s[worker] += self._reserved_s[n]
        self.unfinished[worker].append(n)
        if len(self.unfinished[worker]) == 1:
            self._start(worker, arrival.at_s)

    def _start(self, worker: int, now: float) -> None:
        n = self.unfinished[worker][0]
        arrival, degree = self._arrivals[n], self.workers[worker].degree
        cached = self._pools[worker].leading(self._usable(arrival)) * BLOCK_TOKENS
        uncached = arrival.input_tokens - cached
        alone_s = self._profile.actual_s(degree, uncached, cached)
        service_s = self.conditions.pace(degree) * alone_s * arrival.noise
        outcome = self._outcome
        outcome.cached_tokens[n], outcome.degree[n] = cached, degree
        outcome.busy_gpu_s += service_s * degree
        heappush(self._running, (now + service_s, worker))

    def _end(self, now: float, worker: int) -> None:
        n = self.unfinished[worker].popleft()
        arrival, outcome = self._arrivals[n], self._outcome
        outcome.ttft_s[n] = now - arrival.at_s + self.conditions.outside_s
        outcome.ended += 1
        outcome.span_s = now
        self.predicted_s[worker] -= self._reserved_s.pop(n)
        self._store(worker, arrival.blocks)
        self._router.ended(worker, arrival)
        if self.unfinished[worker]:
            self._start(worker, now)
        else:
            self.predicted_s[worker] = 0.0

    def _store(self, worker: int, blocks: Sequence[int]) -> None:
        stored, evicted = self._pools[worker].use(blocks)
        bit, holders = 1 << worker, self.holders
        for n in stored:
            block = blocks[n]
            holders[block] = holders.get(block, 0) | bit
        for block in evicted:
            left = holders[block] & ~bit
            if left:
                holders[block] = left
            else:
                del holders[block]

    def _usable(self, arrival: Arrival) -> Sequence[int]:
        return arrival.blocks[: self.conditions.usable_blocks(arrival.input_tokens)]
