"""What the requests of a while would have waited, had other workers served them.

Requests come as they came; each goes to the worker with the least J, is served shortest first, and
takes its predicted time with the prefix that it had. So it is what ``placement.py`` and
``worker_queue.py`` do, without prefixes that another composition would have found, and without
limits. Of the workers of a degree the one with the least work is asked for its J.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from heapq import heapreplace
from typing import NamedTuple

from vertumnusd.control.prefill_time import PrefillTime


class Arrived(NamedTuple):
    """A request, and the prefix that it was placed with."""

    at_s: float
    input_tokens: int
    cached_tokens: int
    least_degree: int = 1  # of a worker that has room for it


class _Worker:
    """Requests that have not ended, the least left first: how much, and which."""

    __slots__ = ("left_s", "now_s", "which")

    def __init__(self) -> None:
        self.now_s = 0.0  # up to then its course is known
        self.left_s: list[float] = []
        self.which: list[int] = []

    def cost_s(self, service_s: float) -> float:
        """J: what goes before, what this one delays, and its own time."""
        ahead = bisect_right(self.left_s, service_s)
        behind = len(self.left_s) - ahead
        return self.now_s + sum(self.left_s[:ahead]) + (behind + 1) * service_s

    def add(self, which: int, service_s: float) -> None:
        """Behind those that have as much left, as they came before."""
        at = bisect_right(self.left_s, service_s)
        self.left_s.insert(at, service_s)
        self.which.insert(at, which)

    def pass_time(self, until_s: float, pausing: bool, ended_s: list[float]) -> None:
        """Serve up to ``until_s``; without pausing, what has begun is served to its end."""
        ended = 0
        for left_s, which in zip(self.left_s, self.which, strict=True):
            if self.now_s >= until_s:
                break
            end_s = self.now_s + left_s
            if pausing and end_s > until_s:
                self.left_s[ended] = end_s - until_s
                break
            self.now_s = ended_s[which] = end_s
            ended += 1
        del self.left_s[:ended], self.which[:ended]
        self.now_s = max(self.now_s, until_s)


def ttfts_s(
    requests: Sequence[Arrived],
    degrees: Iterable[int],
    prefill_time: PrefillTime,
    *,
    pausing: bool,
    unplaced_wait_s: float,
) -> list[float]:
    """The times to first token, in the order of ``requests``, on one worker of each of ``degrees``.

    ``requests`` are in the order of their arrival, and find the workers idle. One that no worker
    has room for waits ``unplaced_wait_s``.
    """
    pools: dict[int, list[tuple[float, int, _Worker]]] = {}  # by when each is idle: heaps
    for number, degree in enumerate(degrees):
        pools.setdefault(degree, []).append((0.0, number, _Worker()))
    ended_s = [0.0] * len(requests)
    for which, (at_s, input_tokens, cached_tokens, least_degree) in enumerate(requests):
        uncached = input_tokens - cached_tokens
        least_s, chosen, chosen_s = float("inf"), 0, 0.0
        for degree, pool in pools.items():
            if degree < least_degree:
                continue
            _, _, worker = pool[0]
            worker.pass_time(at_s, pausing, ended_s)
            service_s = prefill_time.predict_s(degree, uncached, cached_tokens)
            cost_s = worker.cost_s(service_s)
            if cost_s < least_s:
                least_s, chosen, chosen_s = cost_s, degree, service_s
        if not chosen:
            ended_s[which] = at_s + unplaced_wait_s
            continue
        idle_at_s, number, worker = pools[chosen][0]
        worker.add(which, chosen_s)
        later_s = max(idle_at_s, worker.now_s) + chosen_s
        heapreplace(pools[chosen], (later_s, number, worker))
    for pool in pools.values():
        for _, _, worker in pool:
            worker.pass_time(float("inf"), pausing, ended_s)
    return [end_s - request.at_s for end_s, request in zip(ended_s, requests, strict=True)]
