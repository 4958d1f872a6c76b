"""Generated workloads: for when no trace is at hand, and for loads that change.

Input lengths are log-normal with the mean and P99 published for each workload; a request shares a
prefix with an earlier one so that over all requests the published share of tokens is reused;
arrivals are Poisson. A load may consist of phases, each with its own rate and lengths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import numpy as np

from vertumnusd.simulate.traces import BLOCK_TOKENS, TraceRow

P99_SIGMAS = 2.3263  # standard deviations from the median to the P99 of a normal distribution
TOKENS_MIN, TOKENS_MAX = 16, 131_072
RECENT = 2_000  # a shared prefix is of one of as many latest requests,
CANDIDATES = 8  # the longest of so many, as long inputs are what is sent again


class Statistics(NamedTuple):
    """Of a workload's requests: input tokens, and the share that an endless cache would hold."""

    mean_tokens: float
    p99_tokens: float
    reuse: float


class Phase(NamedTuple):
    """For ``seconds``, ``rate`` requests/s of the workload called ``kind``."""

    seconds: float
    rate: float
    kind: str


# The first four are those of the Mooncake traces and of L-Eval; the others contrast for phases.
WORKLOADS = {
    "conversation": Statistics(12_035, 85_400, 0.374),
    "tool-agent": Statistics(8_596, 61_671, 0.586),
    "synthetic": Statistics(15_325, 66_456, 0.651),
    "l-eval": Statistics(13_728, 68_056, 0.796),
    "short": Statistics(3_000, 16_000, 0.4),
    "long": Statistics(40_000, 120_000, 0.4),
}


def generate(phases: Sequence[Phase], seed: int) -> list[TraceRow]:
    """The rows of a load, phase after phase."""
    random = np.random.default_rng(seed)
    chains = Chains(random)
    rows = []
    start_s = 0.0
    for phase in phases:
        statistics = WORKLOADS[phase.kind]
        at_s = start_s
        while (at_s := at_s + random.exponential(1 / phase.rate)) < start_s + phase.seconds:
            tokens = _draw_tokens(random, statistics)
            rows.append(TraceRow(at_s * 1e3, tokens, chains.draw(tokens, statistics.reuse)))
        start_s += phase.seconds
    return rows


def _draw_tokens(random: np.random.Generator, statistics: Statistics) -> int:
    """Log-normal: mean = exp(μ + σ²/2) and P99 = exp(μ + 2.326·σ) give σ and μ."""
    spread = math.log(statistics.p99_tokens / statistics.mean_tokens)
    sigma = P99_SIGMAS - math.sqrt(P99_SIGMAS**2 - 2 * spread)
    mu = math.log(statistics.mean_tokens) - sigma**2 / 2
    return int(min(max(random.lognormal(mu, sigma), TOKENS_MIN), TOKENS_MAX))


class Chains:
    """Block ids of requests, some of them shared with earlier ones."""

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random
        self._ids = count()
        self._recent: list[tuple[int, ...]] = []
        self._due_tokens = 0.0  # to be reused, less what is

    def draw(self, tokens: int, reuse: float) -> tuple[int, ...]:
        """A chain for a request. How much it shares varies, but makes good what is due by now."""
        blocks = tokens // BLOCK_TOKENS
        self._due_tokens += reuse * tokens
        shared: tuple[int, ...] = ()
        if self._recent:
            wanted = self._due_tokens * self._random.uniform(0.0, 2.0) / BLOCK_TOKENS
            picks = self._random.integers(len(self._recent), size=CANDIDATES).tolist()
            longest = max((self._recent[n] for n in picks), key=len)
            shared = longest[: min(blocks, max(0, round(wanted)))]
        self._due_tokens -= len(shared) * BLOCK_TOKENS
        chain = shared + tuple(next(self._ids) for _ in range(blocks - len(shared)))
        self._recent.append(chain)
        del self._recent[:-RECENT]
        return chain
