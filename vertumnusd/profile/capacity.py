"""κ_C: how much predicted work a degree-C worker can take on a second, and still meet the SLO.

Service times are real: every request of a mix was prefilled on the ranks, at every degree. Arrivals
and the queue are virtual, since a worker runs one request after the other and its times do not
depend on who waits: Poisson arrivals at a rising rate go to as many workers of the degree as the
ranks make, each to the one with the least predicted work, and wait their turn there. (One worker
alone would come out too low: in a pool a short request need not wait behind a long one.) The
capacity is the work offered to one worker at the highest rate at which the wanted share of tokens
still meets the SLO, in predicted seconds a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vertumnusd.control.settings import SloClass
from vertumnusd.simulate.capacity import WANTED_ATTAINMENT

ARRIVALS = 4_000
SEED = 5
HIGHEST_LOAD = 1.5  # predictions may be too high: 1 is not the limit
STEPS = 9  # of halving: to 0.3 % of the highest load

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Served:
    """One request of the mix at one degree."""

    input_tokens: int
    predicted_s: float
    service_s: float


def capacity_share(served: Sequence[Served], workers: int, slo: Sequence[SloClass]) -> float:
    """κ over the window length; 0 if no rate meets the SLO."""
    low, high = 0.0, HIGHEST_LOAD
    for _ in range(STEPS):
        middle = (low + high) / 2
        if attainment(served, workers, slo, middle) >= WANTED_ATTAINMENT:
            low = middle
        else:
            high = middle
    return round(low, 3)


def attainment(
    served: Sequence[Served], workers: int, slo: Sequence[SloClass], load: float
) -> float:
    """Share of the tokens in time when every worker is offered ``load`` predicted seconds a second.

    The same requests in the same order at every load; only the times between them differ.
    """
    random = np.random.default_rng(SEED)
    picks = random.integers(len(served), size=ARRIVALS)
    gaps = random.exponential(size=ARRIVALS)
    tokens, predicted_s, service_s = (
        np.array(values)[picks]
        for values in zip(
            *((s.input_tokens, s.predicted_s, s.service_s) for s in served), strict=True
        )
    )
    at_s = np.cumsum(gaps) * predicted_s.sum() / (gaps.sum() * load * workers)
    ttft_s = _ttft_s(at_s, predicted_s, service_s, workers)
    below = np.array([bound.below_tokens for bound in slo])
    limits_s = np.array([bound.ttft_s for bound in slo])
    in_time = ttft_s <= limits_s[np.searchsorted(below, tokens, side="right")]
    return float(tokens[in_time].sum() / tokens.sum())


def _ttft_s(at_s: Floats, predicted_s: Floats, service_s: Floats, workers: int) -> Floats:
    """First come first served on each worker; bound on arrival, as placement does."""
    free_s, expected_s = [0.0] * workers, [0.0] * workers
    ttft_s = np.empty(len(at_s))
    for n, (now, guess, service) in enumerate(
        zip(at_s.tolist(), predicted_s.tolist(), service_s.tolist(), strict=True)
    ):
        worker = min(range(workers), key=expected_s.__getitem__)
        expected_s[worker] = max(expected_s[worker], now) + guess
        free_s[worker] = max(free_s[worker], now) + service
        ttft_s[n] = free_s[worker] - now
    return ttft_s
