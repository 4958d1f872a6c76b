"""The mix of requests that κ_C is measured with: lengths and prefixes of a trace, made to fit.

A load is a Mooncake trace or one of the generated workloads. Its prefix hits are those of an
endless cache. A machine that could not serve its long requests in time even alone has no capacity
for them, so all lengths are shrunk by one factor until the 99th percentile takes half of its SLO
limit at the largest degree; a machine that can do so anyway gets the load as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vertumnusd.config import ConfigError
from vertumnusd.control.prefill_time import PrefillTime
from vertumnusd.control.settings import SloClass
from vertumnusd.simulate.generate import WORKLOADS, Phase, generate
from vertumnusd.simulate.traces import BLOCK_TOKENS, TraceError, TraceRow, read_trace

ROWS_MAX = 4_000
SEED = 1
SHARE_OF_LIMIT = 0.5  # that the 99th percentile may take of its SLO limit

Request = tuple[int, int]  # uncached and cached tokens


@dataclass(frozen=True, slots=True)
class Mix:
    """Requests of a load, each as likely as the others."""

    name: str
    factor: float  # on all lengths
    requests: list[Request]

    @property
    def mean_tokens(self) -> float:
        return float(np.mean([sum(request) for request in self.requests]))


def check_load(name: str) -> None:
    """Raises ConfigError unless the load is a workload or a file."""
    if name not in WORKLOADS and not Path(name).exists():
        raise ConfigError(f"--load {name}: no such file, and no load of {', '.join(WORKLOADS)}")


def rows_of(name: str) -> list[TraceRow]:
    """The first rows of a load. Raises ConfigError for a broken trace."""
    if name in WORKLOADS:
        return generate([Phase(ROWS_MAX, 1.0, name)], SEED)[:ROWS_MAX]
    try:
        return read_trace(Path(name))[:ROWS_MAX]
    except TraceError as error:
        raise ConfigError(f"--load: {error}") from error


def mix(
    name: str,
    rows: Sequence[TraceRow],
    requests: int,
    longest: int,
    block_tokens: int,
) -> Mix:
    """So many requests, evenly spaced by total length, whose 99th percentile is ``longest``."""
    p99 = float(np.quantile([row.input_tokens for row in rows], 0.99))
    factor = min(1.0, longest / p99)
    sized = sorted(
        (max(1, min(longest, round(row.input_tokens * factor))), hit / row.input_tokens)
        for row, hit in zip(rows, endless_hits(rows), strict=True)
    )
    picks = ((np.arange(requests) + 0.5) * len(sized) / requests).astype(int).tolist()
    chosen = (sized[n] for n in picks)
    return Mix(name, factor, [_request(size, share, block_tokens) for size, share in chosen])


def endless_hits(rows: Sequence[TraceRow]) -> list[int]:
    """Tokens of each row that an endless cache would hold when it arrives."""
    seen: set[int] = set()
    hits = []
    for row in rows:
        known = [block in seen for block in row.blocks]
        hits.append((known.index(False) if False in known else len(known)) * BLOCK_TOKENS)
        seen.update(row.blocks)
    return hits


def longest_in_time(
    prefill_time: PrefillTime, degree: int, slo: Sequence[SloClass], longest: int
) -> int:
    """The longest input that takes at most half of its limit without a queue; 0 if none does."""
    length = longest
    while length >= 1:
        limit_s = next(bound.ttft_s for bound in slo if length < bound.below_tokens)
        if prefill_time.predict_s(degree, length, 0) <= SHARE_OF_LIMIT * limit_s:
            return length
        length = int(length * 0.98)
    return 0


def _request(tokens: int, cached_share: float, block_tokens: int) -> Request:
    most = (tokens - 1) // block_tokens
    cached = min(int(tokens * cached_share) // block_tokens, most) * block_tokens
    return tokens - cached, cached
