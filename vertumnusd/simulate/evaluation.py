"""The evaluation that ``vertumnusd reproduce`` runs: deployments, loads, and the load curves.

A workload's loads are shares of a rate that no pool of the smallest degree could exceed: all GPUs
busy all the time, every prefix ever sent cached. Parameters are tuned on the first half of each
workload, for each load by itself, and scored on the second half.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vertumnusd.control.settings import IMPROVEMENTS
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
        "Qwen3-30B-A3B, degrees 2 and 4, and 1 for all but the published policy",
        Conditions(profile="q3", cp_degrees=(2, 4), lattice=(1, 2, 4)),
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
    ablated: tuple[float, ...]  # loads without parts of ours; at the highest, each part by itself
    tuned_windows: tuple[int, ...]
    tuned_factors: tuple[float, ...]  # on κ


FULL = Scale(
    seeds=5,
    loads=(0.35, 0.5, 0.6, 0.7, 0.8),
    rows_max=0,
    seconds_factor=1.0,
    deployments=DEPLOYMENTS,
    ablated=(0.5, 0.7),
    tuned_windows=(1, 2),
    tuned_factors=(1.0, 0.8, 0.6),
)
QUICK = Scale(
    seeds=2,
    loads=(0.5, 0.7),
    rows_max=1_000,
    seconds_factor=0.1,
    deployments=DEPLOYMENTS[:1],
    ablated=(0.7,),
    tuned_windows=(1,),
    tuned_factors=(0.8,),
)


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
    return [
        Cell(deployment, source, load, round(load * limit, 2), conditions)
        for deployment in deployments
        for source in loads
        for conditions in [profiled(source, deployment.conditions)]
        for limit in [rate_limit(source, conditions)]
        for load in scale.loads
    ]


def profiled(source: Source, conditions: Conditions) -> Conditions:
    """With κ_C as the first half of a source shows it."""
    return replace(
        conditions, capacity_shares=capacity_shares(rows_of(source, Part.FIRST), conditions)
    )


def rate_limit(source: Source, conditions: Conditions) -> float:
    """Requests/s that keep every GPU busy with an endless cache, at the smallest degree of the
    published policy."""
    smallest = replace(conditions, cp_degrees=conditions.cp_degrees[:1], lattice=())
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


Ablated = dict[tuple[Cell, str], dict[str, list[Summary]]]


def cache_ablation(runner: Runner, curves: Curves, seeds: int) -> Ablated:
    """Ours and paper in each cell with and without replication, and without conversions."""
    return _ablation(
        runner,
        "cache manager",
        {
            (cell, choice.policy): {
                "neither": replace(choice, reconfigures=False, replicates=False),
                "replication": replace(choice, reconfigures=False),
                "conversions": replace(choice, replicates=False),
            }
            for cell, results in curves.items()
            for choice in results
            if choice.policy in ("ours", "paper")
        },
        seeds,
    )


NONE, ALL = "none", "all"


def improvements(runner: Runner, curves: Curves, seeds: int) -> Ablated:
    """What each improvement of ours brings alone, and what is missed without it.

    Without conversions and replication, on the composition of the published policy; the last row
    is ours on the composition that is best for it.
    """
    chosen = {}
    for cell, results in curves.items():
        paper, ours = (_named(results, name) for name in ("paper", "ours"))
        plain = Choice("ours", paper.composition)
        variants = {NONE: replace(plain, left_out=IMPROVEMENTS), ALL: plain}
        for name in IMPROVEMENTS:
            others = tuple(other for other in IMPROVEMENTS if other != name)
            variants[f"only {name}"] = replace(plain, left_out=others)
            variants[f"without {name}"] = replace(plain, left_out=(name,))
        variants["all, own composition"] = Choice("ours", ours.composition)
        chosen[cell, "ours"] = variants
    return _ablation(runner, "improvements", chosen, seeds)


def _named(results: Iterable[Choice], name: str) -> Choice:
    return next(choice for choice in results if choice.policy == name)


def _ablation(
    runner: Runner, what: str, chosen: Mapping[tuple[Cell, str], dict[str, Choice]], seeds: int
) -> Ablated:
    cases = {
        (key, label): [
            Case(key[0].source, Part.SECOND, key[0].rate, seed, choice, key[0].conditions)
            for seed in range(seeds)
        ]
        for key, variants in chosen.items()
        for label, choice in variants.items()
    }
    summaries = runner.run(what, [case for group in cases.values() for case in group])
    found: Ablated = {}
    for (key, label), group in cases.items():
        found.setdefault(key, {})[label] = [summaries[case] for case in group]
    return found
