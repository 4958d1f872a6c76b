"""What a run came to: one entry for each request, and the figures drawn from them.

TTFT is from arrival to the end of the prefill plus what passes outside the prefill pool. SLO
attainment is weighted by input tokens, against a limit by input length; the hit rate is
cached over input tokens; utilisation is busy over available GPU seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from vertumnusd.control.settings import SLO, SloClass

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

Slo = tuple[SloClass, ...]
SLO_TIGHT: Slo = (SloClass(8192, 0.5), SloClass(32768, 2.0), SloClass(float("inf"), 5.0))
LONG_TOKENS = 32768


@dataclass(frozen=True, slots=True)
class Conversion:
    """One split or merge: seconds of its drain, and from then until the new workers served."""

    at_s: float
    before: tuple[str, ...]
    after: tuple[str, ...]
    drain_s: float
    switch_s: float


@dataclass(slots=True)
class Outcome:
    """Filled while a run goes on. A request that never ended has TTFT −1, a refused one inf."""

    policy: str
    ranks: int
    input_tokens: Ints
    ttft_s: Floats
    cached_tokens: Ints
    degree: Ints
    busy_gpu_s: float = 0.0
    span_s: float = 0.0
    moved_bytes: float = 0.0
    transfers: int = 0
    reclaims: int = 0
    composition: str = ""
    conversions: list[Conversion] = field(default_factory=list)
    ended: int = 0

    @staticmethod
    def empty(policy: str, ranks: int, input_tokens: list[int]) -> Outcome:
        n = len(input_tokens)
        zeros = np.zeros(n, np.int64)
        return Outcome(
            policy, ranks, np.array(input_tokens, np.int64), np.full(n, -1.0), zeros, zeros.copy()
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one run."""

    policy: str
    composition: str
    requests: int
    refused: int
    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    slo_loose: float
    slo_tight: float
    short_mean_s: float  # of inputs below LONG_TOKENS
    long_mean_s: float
    hit_rate: float
    utilisation: float
    transfers: int
    moved_gb: float
    reclaims: int
    conversions: int
    drain_s: float  # mean over conversions
    switch_s: float


def summarise(outcome: Outcome) -> Summary:
    """Raises AssertionError if some request never ended, or ended twice."""
    ttft_s, tokens = outcome.ttft_s, outcome.input_tokens
    assert outcome.ended == len(ttft_s), f"{outcome.ended} ends of {len(ttft_s)} requests"
    assert (ttft_s >= 0).all(), "a request never ended"
    served = ttft_s[np.isfinite(ttft_s)]
    p50, p90, p99 = np.percentile(served, (50, 90, 99)).tolist() if len(served) else (0.0,) * 3
    conversions = outcome.conversions
    return Summary(
        policy=outcome.policy,
        composition=outcome.composition,
        requests=len(ttft_s),
        refused=len(ttft_s) - len(served),
        mean_s=_mean(served),
        p50_s=p50,
        p90_s=p90,
        p99_s=p99,
        slo_loose=attainment(outcome, SLO),
        slo_tight=attainment(outcome, SLO_TIGHT),
        short_mean_s=_mean(ttft_s[np.isfinite(ttft_s) & (tokens < LONG_TOKENS)]),
        long_mean_s=_mean(ttft_s[np.isfinite(ttft_s) & (tokens >= LONG_TOKENS)]),
        hit_rate=float(outcome.cached_tokens.sum() / tokens.sum()),
        utilisation=outcome.busy_gpu_s / (outcome.ranks * outcome.span_s),
        transfers=outcome.transfers,
        moved_gb=outcome.moved_bytes / 1e9,
        reclaims=outcome.reclaims,
        conversions=len(conversions),
        drain_s=_mean(np.array([c.drain_s for c in conversions])),
        switch_s=_mean(np.array([c.switch_s for c in conversions])),
    )


def attainment(outcome: Outcome, slo: Slo) -> float:
    """Share of input tokens whose request met its limit."""
    below = np.array([bound.below_tokens for bound in slo])
    limits_s = np.array([bound.ttft_s for bound in slo])
    tokens = outcome.input_tokens
    met = outcome.ttft_s <= limits_s[np.searchsorted(below, tokens, side="right")]
    return float(tokens[met].sum() / tokens.sum())


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else 0.0
