"""The evaluation that ``vertumnusd reproduce`` runs: deployments, loads, and the load curves.

A workload's loads are shares of a rate that no pool of the smallest degree could exceed: all GPUs
busy all the time, every prefix ever sent cached. Parameters are tuned on the first half of each
workload, for each load by itself, and scored on the second half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vertumnusd.simulate.bound import lower_bound
from vertumnusd.simulate.capacity import capacity_shares
from vertumnusd.simulate.choice import Choice
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.experiment import Case, Part, Runner, Source, rows_of
from vertumnusd.simulate.generate import Phase
from vertumnusd.simulate.outcome import Summary
from vertumnusd.simulate.policies import names
from vertumnusd.simulate.traces import arrivals


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model on a pool of GPUs. ``homo_degrees`` are those with a known prefill time."""

    name: str
    title: str
    conditions: Conditions
    homo_degrees: tuple[int, ...]


DEPLOYMENTS = (
    Deployment(
        "q3",
        "Qwen3-30B-A3B, degrees 2 and 4",
        Conditions(profile="q3", cp_degrees=(2, 4)),
        (1, 2, 4, 8),
    ),
    Deployment(
        "ds",
        "a model like DeepSeek-V4-Flash, degrees 4 and 8",
        Conditions(profile="ds", cp_degrees=(4, 8)),
        (4, 8),
    ),
)

# Workload → the beginning of its trace's file name.
TRACES = {
    "conversation": "conversation",
    "tool-agent": "toolagent",
    "synthetic": "synthetic",
    "l-eval": "leval",
}
GENERATED_S, GENERATED_RATE = 1_200.0, 10.0  # of a workload without a trace


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of the evaluation is run."""

    seeds: int
    loads: tuple[float, ...]
    rows_max: int  # of a trace; 0: all
    seconds_factor: float  # of the lengths of generated loads
    deployments: tuple[Deployment, ...]
    tuned_windows: tuple[int, ...]


FULL = Scale(5, (0.35, 0.5, 0.6, 0.7, 0.8), 0, 0.5, DEPLOYMENTS, (1, 2))
QUICK = Scale(2, (0.5, 0.7), 1_200, 0.12, DEPLOYMENTS[:1], (2,))


@dataclass(frozen=True, slots=True)
class Cell:
    """One workload at one load on one deployment, and what was run there."""

    deployment: Deployment
    source: Source
    load: float
    rate: float
    conditions: Conditions


Curves = dict[Cell, dict[Choice, list[Summary]]]


def sources(folder: Path | None, scale: Scale) -> list[Source]:
    """The traces in a folder; for those that are not there, generated workloads."""
    found = []
    for kind, prefix in TRACES.items():
        files = sorted(folder.glob(f"{prefix}*.jsonl*")) if folder is not None else []
        if files:
            found.append(Source(kind, files[0], rows_max=scale.rows_max))
        else:
            phase = Phase(GENERATED_S * scale.seconds_factor, GENERATED_RATE, kind)
            found.append(Source(kind, phases=(phase,)))
    return found


def cells(deployments: Sequence[Deployment], loads: Sequence[Source], scale: Scale) -> list[Cell]:
    """The second deployment, whose prefill times are a guess, at every other load only."""
    return [
        Cell(deployment, source, load, round(load * limit, 2), conditions)
        for deployment in deployments
        for source in loads
        for conditions in [profiled(source, deployment.conditions)]
        for limit in [rate_limit(source, conditions)]
        for load in (scale.loads if deployment == DEPLOYMENTS[0] else scale.loads[::2])
    ]


def profiled(source: Source, conditions: Conditions) -> Conditions:
    """With κ_C as the first half of a source shows it."""
    return replace(
        conditions, capacity_shares=capacity_shares(rows_of(source, Part.FIRST), conditions)
    )


def rate_limit(source: Source, conditions: Conditions) -> float:
    """Requests/s that keep every GPU busy at the smallest degree with an endless cache."""
    smallest = replace(conditions, cp_degrees=conditions.cp_degrees[:1])
    drawn = arrivals(rows_of(source, Part.ALL), 0, 0.0)
    return conditions.ranks * len(drawn) / lower_bound(drawn, smallest).busy_gpu_s


def load_curves(runner: Runner, wanted: Sequence[Cell], seeds: int) -> Curves:
    """Every policy in every cell, tuned, over the seeds."""
    keys = {
        (cell, name): (name, cell.source, cell.rate, cell.conditions)
        for cell in wanted
        for name in names(cell.deployment.homo_degrees)
    }
    tuned = runner.tune(keys.values())
    cases = {
        (cell, tuned[key]): [
            Case(cell.source, Part.SECOND, cell.rate, seed, tuned[key], cell.conditions)
            for seed in range(seeds)
        ]
        for (cell, _), key in keys.items()
    }
    summaries = runner.run("load curves", [case for group in cases.values() for case in group])
    curves: Curves = {cell: {} for cell in wanted}
    for (cell, choice), group in cases.items():
        curves[cell][choice] = [summaries[case] for case in group]
    return curves


def ablation(
    runner: Runner, curves: Curves, seeds: int
) -> dict[tuple[Cell, str], dict[str, list[Summary]]]:
    """Ours and paper in each cell with and without replication, and without conversions."""
    cases = {}
    for cell, results in curves.items():
        for choice in results:
            if choice.policy not in ("ours", "paper"):
                continue
            for label, changed in variants(choice).items():
                cases[cell, choice.policy, label] = [
                    Case(cell.source, Part.SECOND, cell.rate, seed, changed, cell.conditions)
                    for seed in range(seeds)
                ]
    summaries = runner.run("ablation", [case for group in cases.values() for case in group])
    found: dict[tuple[Cell, str], dict[str, list[Summary]]] = {}
    for (cell, name, label), group in cases.items():
        found.setdefault((cell, name), {})[label] = [summaries[case] for case in group]
    return found


def variants(choice: Choice) -> dict[str, Choice]:
    return {
        "neither": replace(choice, reconfigures=False, replicates=False),
        "replication": replace(choice, reconfigures=False),
        "conversions": replace(choice, replicates=False),
    }
