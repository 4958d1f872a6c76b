"""Figures over seeds: means with their intervals, as a table for people and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from vertumnusd.simulate.choice import Choice
from vertumnusd.simulate.outcome import Summary

# Two-sided 95 % of Student's t for n − 1 degrees of freedom.
T_95 = (0.0, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)


class Interval(NamedTuple):
    """A mean over seeds, and half the width of its 95 % interval (0 for a single seed)."""

    mean: float
    half: float


def interval(values: Sequence[float]) -> Interval:
    n = len(values)
    mean = sum(values) / n
    if n == 1:
        return Interval(mean, 0.0)
    variance = sum((value - mean) ** 2 for value in values) / (n - 1)
    t = T_95[n - 1] if n <= len(T_95) else 2.0
    return Interval(mean, t * math.sqrt(variance / n))


def figure(summaries: Sequence[Summary], name: str) -> Interval:
    """One field of the summaries of a policy's seeds."""
    return interval([getattr(summary, name) for summary in summaries])


COLUMNS = (
    ("mean", "mean_s", 1e3, "ms"),
    ("P50", "p50_s", 1e3, "ms"),
    ("P90", "p90_s", 1e3, "ms"),
    ("P99", "p99_s", 1e3, "ms"),
    ("SLO", "slo_loose", 100.0, "%"),
    ("SLO/2", "slo_tight", 100.0, "%"),
    ("hit", "hit_rate", 100.0, "%"),
    ("GPU", "utilisation", 100.0, "%"),
    ("moves", "transfers", 1.0, ""),
    ("GB", "moved_gb", 1.0, ""),
    ("conv", "conversions", 1.0, ""),
)


def table(results: Mapping[Choice, Sequence[Summary]]) -> str:
    """One line for each policy: TTFT in ms, shares in %, then counts."""
    header = f"{'policy':14}{'parameters':26}{'mean TTFT':>16}"
    header += "".join(f"{name:>8}" for name, *_ in COLUMNS[1:])
    lines = [header]
    for choice, summaries in results.items():
        mean = figure(summaries, "mean_s")
        line = f"{choice.policy:14}{choice.label:26}{mean.mean * 1e3:10.0f} ±{mean.half * 1e3:4.0f}"
        for _, name, scale, unit in COLUMNS[1:]:
            value = figure(summaries, name).mean * scale
            line += f"{value:8.1f}" if unit == "%" else f"{value:8.0f}"
        lines.append(line)
    return "\n".join(lines)


def as_json(results: Mapping[Choice, Sequence[Summary]]) -> list[dict[str, Any]]:
    return [
        {"choice": asdict(choice), "seeds": [asdict(summary) for summary in summaries]}
        for choice, summaries in results.items()
    ]
