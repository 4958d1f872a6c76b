"""The lower bound: every request alone, at its best degree, with everything ever sent cached.

A block counts as cached if an earlier arrival had it. No policy that serves a worker's requests in
order of arrival can have a smaller mean.
"""

from __future__ import annotations

from collections.abc import Sequence

from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.outcome import Outcome
from vertumnusd.simulate.profiles import profile
from vertumnusd.simulate.traces import BLOCK_TOKENS, Arrival


def lower_bound(arrivals: Sequence[Arrival], conditions: Conditions) -> Outcome:
    actual_s = profile(conditions.profile).actual_s
    outcome = Outcome.empty("bound", conditions.ranks, [a.input_tokens for a in arrivals])
    seen: set[int] = set()
    for n, arrival in enumerate(arrivals):
        usable = arrival.blocks[: conditions.usable_blocks(arrival.input_tokens)]
        blocks = next((k for k, block in enumerate(usable) if block not in seen), len(usable))
        seen.update(arrival.blocks)
        cached = blocks * BLOCK_TOKENS
        uncached = arrival.input_tokens - cached
        service_s, degree = min(
            (conditions.pace(degree) * actual_s(degree, uncached, cached) * arrival.noise, degree)
            for degree in conditions.degrees
        )
        outcome.ttft_s[n] = service_s + conditions.outside_s
        outcome.cached_tokens[n], outcome.degree[n] = cached, degree
        outcome.busy_gpu_s += service_s * degree
        outcome.ended += 1
        outcome.span_s = max(outcome.span_s, arrival.at_s + service_s)
    return outcome
