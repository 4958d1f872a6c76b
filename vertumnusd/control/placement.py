"""Placement (section 3): the worker with the smallest J takes the request.

    J = q_w + β·s + λ·(C_w·s − C_min·Ê_Cmin(R, P)),    s = Ê_Cw(R, P)

q_w is the predicted time of the unfinished requests on w, P what w itself has cached and R the
rest, C_min the smallest degree among the candidates. β ≥ 1 weighs computing above waiting,
which keeps prefixes together; λ ≥ 0 is the price of GPU seconds beyond those at degree C_min.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from vertumnusd.control.fleet import Worker
from vertumnusd.control.prefill_time import PrefillTime


class Candidate(NamedTuple):
    """A worker that may take the request, its queue, and how much of the input it has cached."""

    worker: Worker
    queue_s: float
    cached_tokens: int


class Terms(NamedTuple):
    """A candidate, priced. All in seconds: J is ``cost_s``, and ``own_s`` is J − q."""

    candidate: Candidate
    service_s: float
    gpu_price_s: float
    own_s: float
    cost_s: float


class Policy(NamedTuple):
    """What decides a placement besides the state of the workers."""

    prefill_time: PrefillTime
    beta: float
    lambda_: float

    def place(self, candidates: Iterable[Candidate], input_tokens: int) -> tuple[Terms, int]:
        """The cheapest candidate, and the preferred degree: the degree of argmin (J − q).

        Equal J: the shorter queue wins, then the longer prefix, then the smaller (degree, base).
        """
        candidates = list(candidates)
        smallest_degree = min(candidate.worker.degree for candidate in candidates)
        priced = [self.price(c, input_tokens, smallest_degree) for c in candidates]
        preferred = min(priced, key=lambda t: (t.own_s, t.candidate.worker.degree))
        return min(priced, key=_rank), preferred.candidate.worker.degree

    def price(self, candidate: Candidate, input_tokens: int, smallest_degree: int) -> Terms:
        """The terms of J for one candidate."""
        degree, cached = candidate.worker.degree, candidate.cached_tokens
        uncached = input_tokens - cached
        service_s = self.prefill_time.predict_s(degree, uncached, cached)
        gpu_price_s = 0.0
        if self.lambda_:
            least_s = self.prefill_time.predict_s(smallest_degree, uncached, cached)
            gpu_price_s = self.lambda_ * (degree * service_s - smallest_degree * least_s)
        own_s = self.beta * service_s + gpu_price_s
        return Terms(candidate, service_s, gpu_price_s, own_s, candidate.queue_s + own_s)


def _rank(terms: Terms) -> tuple[float, float, int, Worker]:
    worker, queue_s, cached_tokens = terms.candidate
    return terms.cost_s, queue_s, -cached_tokens, worker
