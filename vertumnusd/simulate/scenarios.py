"""Loads that change, and what reconfiguration brings under them.

Four scenarios, fixed before they were ever run. ``six phases`` follows the shape of the published
experiment: low and high load in turn, short and long inputs in turn. ``day`` rises and falls
slowly with one mix of lengths; ``drift`` keeps its load while inputs grow long and short again;
``flicker`` changes faster than a window, so that every conversion comes too late: it is here to
show what reconfiguration costs.

Rates are shares of what the pool could serve of that phase's workload (``rate_limit``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from vertumnusd.simulate.capacity import capacity_shares
from vertumnusd.simulate.choice import Choice, adaptive
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.evaluation import Scale, rate_limit
from vertumnusd.simulate.experiment import (
    GENERATOR_SEED,
    Case,
    Part,
    Runner,
    Source,
    rows_of,
)
from vertumnusd.simulate.generate import Phase, generate
from vertumnusd.simulate.outcome import Conversion, Summary
from vertumnusd.simulate.policies import compositions, run_policy
from vertumnusd.simulate.traces import arrivals

LOW, MIDDLE, HIGH = 0.3, 0.5, 0.75
BIN_S = 10.0  # of the timeline
PROFILED_S = 200.0

SCENARIOS: Mapping[str, tuple[tuple[float, float, str], ...]] = {
    "six phases": (
        (150.0, LOW, "conversation"),
        (150.0, HIGH, "short"),
        (150.0, LOW, "long"),
        (150.0, HIGH, "tool-agent"),
        (150.0, MIDDLE, "long"),
        (150.0, HIGH, "conversation"),
    ),
    "day": tuple(
        (120.0, load, "conversation") for load in (LOW, 0.45, 0.6, HIGH, HIGH, 0.6, 0.45, LOW)
    ),
    "drift": tuple(
        (150.0, MIDDLE, kind) for kind in ("short", "conversation", "long", "conversation", "short")
    ),
    "flicker": ((8.0, HIGH, "short"), (8.0, MIDDLE, "long")) * 45,
}


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    phases: tuple[Phase, ...]

    def source(self, seed: int) -> Source:
        return Source(self.name, phases=self.phases, seed=GENERATOR_SEED + seed)


@dataclass(frozen=True, slots=True)
class Timeline:
    """Mean TTFT of the requests that arrived in each ``BIN_S``, and the conversions."""

    ttft_s: tuple[float, ...]
    conversions: tuple[Conversion, ...]


# Role → the choice that plays it, and its summaries.
Roles = dict[str, tuple[Choice, list[Summary]]]


def scenarios(conditions: Conditions, scale: Scale) -> list[Scenario]:
    limits = lru_cache(lambda kind: _limit(kind, conditions))
    return [
        Scenario(
            name,
            tuple(
                Phase(seconds * scale.seconds_factor, load * limits(kind), kind)
                for seconds, load, kind in parts
            ),
        )
        for name, parts in SCENARIOS.items()
    ]


def _limit(kind: str, conditions: Conditions) -> float:
    return rate_limit(Source(kind, phases=(Phase(100.0, 20.0, kind),)), conditions)


def profiled(conditions: Conditions) -> Conditions:
    """With κ_C as an operator would know it beforehand: from a load of one kind."""
    rows = generate((Phase(PROFILED_S, 20.0, "conversation"),), GENERATOR_SEED)
    return replace(conditions, capacity_shares=capacity_shares(rows, conditions))


def play(runner: Runner, scenario: Scenario, conditions: Conditions, scale: Scale) -> Roles:
    """Fixed and following compositions; parameters tuned on another draw of the same scenario.

    The published placement is the same in all; fixed ones need no controller.
    """
    tuning = scenario.source(-1)
    first = Source(f"{scenario.name}, first phase", phases=scenario.phases[:1], seed=tuning.seed)
    mixes = compositions(conditions.degrees, conditions.ranks)
    published = compositions(conditions.cp_degrees, conditions.ranks)
    start = _best(runner, first, [Choice("mix", mix) for mix in published], conditions).composition
    best = _best(runner, tuning, [Choice("mix", mix) for mix in mixes], conditions).composition
    roles = {
        f"homo-{degree}": Choice("mix", f"{conditions.ranks // degree}CP{degree}")
        for degree in conditions.degrees
    }
    roles |= {
        "fixed as at the start": Choice("mix", start),
        "fixed, best in hindsight": Choice("mix", best),
        "ours, fixed, best in hindsight": Choice("ours", best),
    }
    following = [
        replace(adaptive("paper", start), hold_windows=windows, capacity_factor=factor)
        for windows in scale.tuned_windows
        for factor in scale.tuned_factors
    ]
    roles["paper"] = _best(runner, tuning, following, conditions)
    roles["ours"] = adaptive("ours", start)  # it judges by times: neither of the two counts
    cases = {
        role: [
            Case(scenario.source(seed), Part.ALL, None, seed, choice, conditions)
            for seed in range(scale.seeds)
        ]
        for role, choice in roles.items()
    }
    summaries = runner.run(scenario.name, [case for group in cases.values() for case in group])
    return {
        role: (roles[role], [summaries[case] for case in group]) for role, group in cases.items()
    }


def _best(
    runner: Runner, source: Source, choices: Sequence[Choice], conditions: Conditions
) -> Choice:
    if len(choices) == 1:
        return choices[0]
    cases = [Case(source, Part.ALL, None, 1_000, choice, conditions) for choice in choices]
    summaries = runner.run(f"tuning {source.name}", cases)
    return min(cases, key=lambda case: summaries[case].mean_s).choice


def timeline(scenario: Scenario, choice: Choice, conditions: Conditions) -> Timeline:
    drawn = arrivals(rows_of(scenario.source(0), Part.ALL), 0, conditions.noise_sigma)
    outcome = run_policy(choice, drawn, conditions)
    bins = np.array([int(arrival.at_s / BIN_S) for arrival in drawn])
    counts = np.bincount(bins)
    sums = np.bincount(bins, weights=outcome.ttft_s)
    means = np.divide(sums, counts, out=np.zeros_like(sums), where=counts > 0)
    return Timeline(tuple(means.tolist()), tuple(outcome.conversions))
