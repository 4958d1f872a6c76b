"""``vertumnusd reproduce``: the whole evaluation, from nothing to ``docs/benchmarks.md``.

Everything is drawn from fixed seeds, so that a second run writes the same figures.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from vertumnusd.config import ConfigError
from vertumnusd.control.prefill_time import Measurement, RelativeError, fit
from vertumnusd.simulate import page, words
from vertumnusd.simulate.choice import Choice
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.evaluation import (
    FULL,
    QUICK,
    Cell,
    Curves,
    Scale,
    cache_ablation,
    cells,
    improvements,
    load_curves,
    sources,
)
from vertumnusd.simulate.experiment import Runner, Source
from vertumnusd.simulate.outcome import Summary
from vertumnusd.simulate.plots import Panel, PlotsMissing, Series, lines
from vertumnusd.simulate.profiles import profile, read_table, variants_of
from vertumnusd.simulate.report import Interval, figure
from vertumnusd.simulate.results import LENGTHS, Evaluation
from vertumnusd.simulate.scenarios import (
    BIN_S,
    Roles,
    Scenario,
    Timeline,
    play,
    profiled,
    scenarios,
    timeline,
)
from vertumnusd.simulate.traces import TraceError

PUBLISHED_SPEED_UPS = {1024: (0.86, 0.99, 1.06), 65_536: (1.68, 2.71, 3.91)}
FIT_NOISE = 0.05


def reproduce(arguments: argparse.Namespace) -> int:
    """Returns the exit status; raises ConfigError for what cannot be run."""
    folder: Path = arguments.out
    try:
        evaluation = _evaluate(arguments)
        _plot(folder / "plots", evaluation)
    except (TraceError, PlotsMissing) as error:
        raise ConfigError(str(error)) from error
    path = folder / "benchmarks.md"
    path.write_text(words.benchmarks(evaluation))
    print(f"{path} and its plots written after {evaluation.elapsed_s:.0f} s")
    return 0


def _evaluate(arguments: argparse.Namespace) -> Evaluation:
    started = time.monotonic()
    scale = QUICK if arguments.quick else FULL
    loads = sources(arguments.traces, scale)
    conditions = scale.deployments[0].conditions
    with Runner(arguments.jobs) as runner:
        curves = load_curves(runner, cells(scale.deployments, loads, scale), scale.seeds)
        chosen = {c: r for c, r in curves.items() if _is_ablated(c, scale)}
        ablated = cache_ablation(runner, chosen, scale.seeds)
        busiest = {c: r for c, r in chosen.items() if c.load == max(scale.ablated)}
        improved = improvements(runner, busiest, scale.seeds)
        known = profiled(conditions)
        reconfigured = [
            (scenario, play(runner, scenario, known, scale))
            for scenario in scenarios(conditions, scale)
        ]
    return Evaluation(
        scale=scale,
        sources=loads,
        fits=_fits(conditions, arguments.tables),
        curves=curves,
        ablated=ablated,
        improved=improved,
        reconfigured=reconfigured,
        timelines=_timelines(*reconfigured[0], known),
        elapsed_s=time.monotonic() - started,
    )


def _is_ablated(cell: Cell, scale: Scale) -> bool:
    return cell.load in scale.ablated and cell.deployment == scale.deployments[0]


def _timelines(scenario: Scenario, roles: Roles, conditions: Conditions) -> dict[str, Timeline]:
    shown = ("fixed as at the start", "fixed, best in hindsight", "paper", "ours")
    return {role: timeline(scenario, roles[role][0], conditions) for role in shown}


# --- fits


def _fits(conditions: Conditions, tables: Path | None) -> dict[str, tuple[int, RelativeError]]:
    """How well Ê fits: noisy measurements of its own kind, and measured tables."""
    fits = {f"{conditions.profile}, C = 2, 4, 8, σ {FIT_NOISE:g} of noise": _own_fit(conditions)}
    for path in sorted(tables.glob("*.csv")) if tables is not None else []:
        for variant in variants_of(path):
            measurements = [m for m in read_table(path, variant) if m.degree > 1]
            if measurements:
                fits[f"{path.stem}, {variant}"] = (len(measurements), fit(measurements)[1])
    return fits


def _own_fit(conditions: Conditions) -> tuple[int, RelativeError]:
    random = np.random.default_rng(0)
    actual_s = profile(conditions.profile).actual_s
    measurements = [
        Measurement(degree, length - cached, cached, actual_s(degree, length - cached, cached) * n)
        for degree in (2, 4, 8)
        for length in LENGTHS
        for cached in (0, length // 4, length // 2, 3 * length // 4)
        for n in [float(np.exp(random.normal(0.0, FIT_NOISE)))]
    ]
    return len(measurements), fit(measurements)[1]


# --- plots


def _plot(folder: Path, evaluation: Evaluation) -> None:
    print("drawing", file=sys.stderr)
    _plot_speed_ups(folder / "speed_up.png", evaluation.scale.deployments[0].conditions)
    for deployment in evaluation.scale.deployments:
        curves = {c: r for c, r in evaluation.curves.items() if c.deployment == deployment}
        _plot_curves(folder / f"load_{deployment.name}.png", curves, evaluation.sources)
    scenario, roles = evaluation.reconfigured[0]
    _plot_timelines(folder / "six_phases.png", scenario, roles, evaluation.timelines)


def _plot_speed_ups(path: Path, conditions: Conditions) -> None:
    seconds = profile(conditions.profile).actual_s
    series = []
    for length in LENGTHS[::2]:
        single_s = seconds(1, length, 0)
        points = [(c, Interval(single_s / seconds(c, length, 0), 0.0)) for c in (1, 2, 4, 8)]
        series.append(Series(f"{length // 1024}K", points))
    published = [
        Series(
            f"published, {length // 1024}K",
            [(degree, Interval(s, 0.0)) for degree, s in zip((2, 4, 8), speed_ups, strict=True)],
            marks_only=True,
        )
        for length, speed_ups in PUBLISHED_SPEED_UPS.items()
    ]
    series.sort(key=lambda line: int(line.name[:-1]))
    panel = Panel("prefill speed-up by input length", "degree", "× degree 1", series + published)
    lines(path, [panel], columns=1, width=6.0)


Y_AXES: tuple[tuple[str, str, float, bool], ...] = (
    ("mean_s", "mean TTFT, s", 1.0, True),
    ("p90_s", "P90 TTFT, s", 1.0, True),
    ("slo_loose", "SLO attainment, %", 100.0, False),
)


def _plot_curves(path: Path, curves: Curves, loads: Sequence[Source]) -> None:
    """A row of panels for each workload: mean, P90 and SLO attainment against load."""
    panels = []
    for source in loads:
        here = {cell: results for cell, results in curves.items() if cell.source == source}
        names = dict.fromkeys(choice.policy for results in here.values() for choice in results)
        for field, label, scale, logarithmic in Y_AXES:
            draw = _figures(here, field, scale)
            series = [Series(name, draw(name)) for name in names]
            top = None if logarithmic else 101.0
            panels.append(Panel(source.name, "requests/s", label, series, logarithmic, top))
    lines(path, panels, columns=len(Y_AXES))


def _figures(
    curves: Mapping[Cell, Mapping[Choice, list[Summary]]], field: str, scale: float
) -> Callable[[str], list[tuple[float, Interval]]]:
    def points(name: str) -> list[tuple[float, Interval]]:
        found = []
        for cell, results in curves.items():
            mean, half = figure(page.runs_of(results, name), field)
            found.append((cell.rate, Interval(mean * scale, half * scale)))
        return found

    return points


def _plot_timelines(
    path: Path, scenario: Scenario, roles: Roles, timelines: Mapping[str, Timeline]
) -> None:
    series = []
    for role, line in timelines.items():
        label = f"{role} ({roles[role][0].composition})"
        points = [(BIN_S * n, Interval(s, 0.0)) for n, s in enumerate(line.ttft_s) if s > 0]
        series.append(Series(label, points))
    borders = [sum(p.seconds for p in scenario.phases[:n]) for n in range(1, len(scenario.phases))]
    conversions = [c.at_s for c in timelines["paper"].conversions]
    panel = Panel(
        "six phases: mean TTFT by arrival; dotted: phases, ticks: conversions of paper",
        "seconds",
        "seconds",
        series,
        log_y=True,
        borders=tuple(borders),
        ticks=tuple(conversions),
    )
    lines(path, [panel], columns=1, width=10.0)
