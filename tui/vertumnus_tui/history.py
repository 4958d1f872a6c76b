"""What was, once a second: a bounded series of the figures that are plotted."""

from __future__ import annotations

from collections import deque
from itertools import dropwhile
from typing import NamedTuple

from vertumnus_tui.cluster import Cluster

INTERVAL_S = 1.0
KEPT_S = 3600.0
RATE_S = 10.0  # rates are taken over this time


class Sample(NamedTuple):
    """None: nothing to tell then."""

    t: float
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    queue_s: float | None
    hit_rate: float | None
    request_rate: float | None
    long_share: float | None
    demand_s: float | None
    capacity_s: float | None


class _Totals(NamedTuple):
    t: float
    submitted: int
    input_tokens: int
    cached_tokens: int
    requests: int


class History:
    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=int(KEPT_S / INTERVAL_S))
        self._totals: deque[_Totals] = deque()

    def due(self, t: float) -> bool:
        return not self._samples or t >= self._samples[-1].t + INTERVAL_S

    def add(self, t: float, cluster: Cluster) -> None:
        totals = cluster.totals
        now = _Totals(
            t,
            totals.get("submitted", 0),
            totals.get("input_tokens", 0),
            totals.get("cached_tokens", 0),
            cluster.slo.requests,
        )
        self._totals.append(now)
        while t - self._totals[0].t > RATE_S and len(self._totals) > 2:
            self._totals.popleft()
        self._samples.append(_sample(t, cluster, self._totals[0], now))

    def shift(self, by_s: float) -> None:
        """Onto another clock, on which totals begin anew."""
        moved = [sample._replace(t=sample.t + by_s) for sample in self._samples]
        self._samples = deque(moved, self._samples.maxlen)
        self._totals.clear()

    def last(self, window_s: float) -> list[Sample]:
        """The samples of the last ``window_s``, oldest first."""
        if not self._samples:
            return []
        since = self._samples[-1].t - window_s
        return list(dropwhile(lambda sample: sample.t < since, self._samples))

    @property
    def latest(self) -> Sample | None:
        return self._samples[-1] if self._samples else None


def _sample(t: float, cluster: Cluster, before: _Totals, now: _Totals) -> Sample:
    passed_s = now.t - before.t
    tokens = now.input_tokens - before.input_tokens
    served = now.requests > before.requests
    recent, decision = cluster.slo.recent_ttft_s, cluster.decision
    queues = [worker.queue_s for worker in cluster.workers]
    return Sample(
        t,
        ttft_p50_s=recent.get("p50") if served else None,
        ttft_p99_s=recent.get("p99") if served else None,
        queue_s=sum(queues) / len(queues) if queues else None,
        hit_rate=(now.cached_tokens - before.cached_tokens) / tokens if tokens > 0 else None,
        request_rate=(now.submitted - before.submitted) / passed_s if passed_s > 0 else None,
        long_share=decision.long_request_share if decision else None,
        demand_s=decision.demand_s if decision else None,
        capacity_s=cluster.adaptation.capacity_s if decision else None,
    )
