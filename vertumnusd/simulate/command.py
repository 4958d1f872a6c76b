"""``vertumnusd simulate``: replay a trace on a budget of GPUs under several policies."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from vertumnusd.config import ConfigError
from vertumnusd.simulate.choice import Choice, adaptive
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.controlled import run_controlled
from vertumnusd.simulate.evaluation import profiled
from vertumnusd.simulate.experiment import Case, Part, Runner, Source, rows_of
from vertumnusd.simulate.outcome import Summary
from vertumnusd.simulate.plots import Bars, PlotsMissing, bars
from vertumnusd.simulate.policies import names
from vertumnusd.simulate.profiles import profile
from vertumnusd.simulate.record import Recording
from vertumnusd.simulate.report import as_json, figure, table
from vertumnusd.simulate.requested import check_composition, check_fits, conditions_of, source_of
from vertumnusd.simulate.traces import TraceError, arrivals, span_s

Results = dict[Choice, list[Summary]]


def simulate(arguments: argparse.Namespace) -> int:
    """Returns the exit status; raises ConfigError for what cannot be run."""
    try:
        source = source_of(arguments)
        rate = arguments.rate if source.path is not None else None  # else generated at that rate
        conditions = conditions_of(arguments)
        check_fits(source, conditions)
        wanted = _policies(arguments, conditions)
        rows = rows_of(source, Part.ALL)
        if not {"ours", "paper"}.isdisjoint(wanted):
            conditions = profiled(source, conditions)
        print(_headline(source, len(rows), rate or len(rows) / span_s(rows), conditions))
        with Runner(arguments.jobs) as runner:
            results = _compare(runner, source, rate, arguments, conditions, wanted)
        print(table(results))
        if arguments.json is not None:
            _write_json(arguments.json, source, rate, conditions, results)
        if arguments.plots is not None:
            _plot(arguments.plots, results)
        if arguments.record is not None:
            _record(arguments, source, rate, conditions, results)
    except (TraceError, PlotsMissing) as error:
        raise ConfigError(str(error)) from error
    return 0


def _policies(arguments: argparse.Namespace, conditions: Conditions) -> list[str]:
    fitting = [degree for degree in conditions.cp_degrees if conditions.ranks % degree == 0]
    known = names(fitting)
    if arguments.policies == "all":
        return known
    wanted = [name.strip() for name in arguments.policies.split(",")]
    if unknown := [name for name in wanted if name not in known]:
        raise ConfigError(f"--policies: no policy {unknown[0]}; known: {', '.join(known)}")
    return wanted


def _headline(source: Source, requests: int, rate: float, conditions: Conditions) -> str:
    degrees = ", ".join(map(str, conditions.cp_degrees))
    return (
        f"{source.name}: {requests} requests at {rate:.1f}/s on {conditions.ranks} GPUs, degrees"
        f" {degrees}, profile {profile(conditions.profile).name};"
        f" {conditions.kv_tokens} tokens of KV a GPU, {conditions.link_bytes_s / 1e9:g} GB/s\n"
        "TTFT in ms (± 95 % over seeds); SLO token-weighted, in %; SLO/2 at half the limits"
    )


def _compare(
    runner: Runner,
    source: Source,
    rate: float | None,
    arguments: argparse.Namespace,
    conditions: Conditions,
    wanted: Sequence[str],
) -> Results:
    """Tune, then run every policy on every seed."""
    keys = [(name, source, rate, conditions) for name in wanted]
    if arguments.composition is not None:
        check_composition(arguments.composition, conditions)
        keys = [key for key in keys if key[0] not in ("ours", "paper")]
    tuned = {key[0]: choice for key, choice in runner.tune(keys).items()}
    choices = [tuned.get(name) or adaptive(name, arguments.composition) for name in wanted]
    cases = {
        choice: [
            Case(source, Part.ALL, rate, seed, choice, conditions)
            for seed in range(arguments.seeds)
        ]
        for choice in choices
    }
    summaries = runner.run("runs", [case for group in cases.values() for case in group])
    return {choice: [summaries[case] for case in group] for choice, group in cases.items()}


def _write_json(
    path: Path, source: Source, rate: float | None, conditions: Conditions, results: Results
) -> None:
    report = {
        "source": source.name,
        "rate": rate,
        "conditions": asdict(conditions),
        "policies": as_json(results),
    }
    path.write_text(json.dumps(report, indent=1) + "\n")


def _plot(path: Path, results: Mapping[Choice, Sequence[Summary]]) -> None:
    fields = (("mean TTFT", "mean_s"), ("P90 TTFT", "p90_s"))
    bars(
        path,
        [
            Bars(
                title,
                "seconds",
                [""],
                {choice.policy: [figure(runs, name)] for choice, runs in results.items()},
                log_y=True,
            )
            for title, name in fields
        ],
        columns=2,
    )


def _record(
    arguments: argparse.Namespace,
    source: Source,
    rate: float | None,
    conditions: Conditions,
    results: Results,
) -> None:
    """Play the first policy that the controller drives once more, and keep pictures of it."""
    choice = next((c for c in results if c.policy in ("ours", "paper")), None)
    if choice is None:
        raise ConfigError("--record: one of ours and paper must be among the policies")
    drawn = arrivals(rows_of(source, Part.ALL), 0, conditions.noise_sigma, rate)
    with arguments.record.open("wb") as file:
        recording = Recording(file, arguments.record_interval, choice.policy)
        run_controlled(choice, drawn, conditions, recording)
    print(f"recording written to {arguments.record}", file=sys.stderr)
