"""``vertumnusd calibrate``: thresholds for a cluster and its load, as a part of a configuration."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from vertumnusd.config import Config, ConfigError
from vertumnusd.control.settings import AUTO, ReconfigurationSettings
from vertumnusd.simulate.calibration import (
    Calibration,
    Dial,
    Load,
    Turn,
    dials_of,
    is_proven,
    search,
)
from vertumnusd.simulate.choice import Choice, adaptive
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.evaluation import profiled
from vertumnusd.simulate.experiment import TUNING_SEED, Part, Runner, Source, rows_of
from vertumnusd.simulate.history import demands_s, initial_composition
from vertumnusd.simulate.policies import run_policy
from vertumnusd.simulate.profiles import profile
from vertumnusd.simulate.report import Interval
from vertumnusd.simulate.requested import check_composition, check_fits, conditions_of, source_of
from vertumnusd.simulate.traces import TraceError, arrivals

REQUESTS_MIN = 40  # of a trace: with fewer nothing can be proven
QUICK_REQUESTS = 2_000  # of a trace

Fragment = dict[str, dict[str, Any]]  # section → key → value


def calibrate(arguments: argparse.Namespace) -> int:
    """Returns the exit status; raises ConfigError for what cannot be run."""
    try:
        load, defaults = _asked_for(arguments)
        dials = dials_of(arguments.policy, arguments.quick)
        print(_headline(load, defaults), flush=True)
        with Runner(arguments.jobs) as runner:
            found = search(runner, load, defaults, dials, lambda turn: print(_told(turn)))
    except TraceError as error:
        raise ConfigError(str(error)) from error
    demand_s = busiest_demand_s(load, found.kept)
    verdict = f"{_verdict(found)}\n{_history(demand_s, load.conditions)}"
    print(verdict)
    sections = fragment(found, dials, load.conditions, demand_s)
    text = toml(f"{_headline(load, defaults)}\n{verdict}", sections)
    arguments.out.write_text(text, encoding="utf-8")
    print(f"{arguments.out}:\n\n{text}", end="")
    return 0


def _asked_for(arguments: argparse.Namespace) -> tuple[Load, Choice]:
    if arguments.seeds < 2:
        raise ConfigError(f"--seeds {arguments.seeds}: 2 or more are expected, to know the chance")
    source = source_of(arguments)
    if arguments.quick:
        source = replace(source, rows_max=QUICK_REQUESTS)
    conditions = conditions_of(arguments)
    smallest = conditions.degrees[0]
    composition = arguments.composition or f"{conditions.ranks // smallest}CP{smallest}"
    check_composition(composition, conditions)
    requests = len(rows_of(source, Part.ALL))
    if requests < REQUESTS_MIN:
        raise ConfigError(
            f"{arguments.source}: {requests} requests; at least {REQUESTS_MIN} are expected"
        )
    check_fits(source, conditions)
    if arguments.policy == "paper":
        conditions = _with_capacity(source, conditions)
    rate = arguments.rate if source.path is not None else None  # else generated at that rate
    first = Part.BEGINNING if arguments.quick else Part.FIRST
    load = Load(source, rate, conditions, first, arguments.seeds)
    return load, adaptive(arguments.policy, composition)


def _with_capacity(source: Source, conditions: Conditions) -> Conditions:
    """With κ_C of the profile, if it names every degree; else as the load shows it."""
    known = profile(conditions.profile).capacity_shares
    if not set(conditions.degrees) <= set(known):
        return profiled(source, conditions)
    shares = tuple((degree, known[degree]) for degree in conditions.degrees)
    return replace(conditions, capacity_shares=shares)


def busiest_demand_s(load: Load, choice: Choice) -> float:
    """The largest D of all windows of the load."""
    conditions, window_s = load.conditions, ReconfigurationSettings().window_s
    rows = rows_of(load.source, Part.ALL)
    drawn = arrivals(rows, TUNING_SEED, conditions.noise_sigma, load.rate)
    outcome = run_policy(choice, drawn, conditions)
    return max(demands_s(drawn, outcome, conditions, window_s))


# --- words


def _headline(load: Load, defaults: Choice) -> str:
    conditions = load.conditions
    degrees = ", ".join(map(str, conditions.degrees))
    rate = f" at {load.rate:g} requests/s" if load.rate is not None else ""
    return (
        f"{load.source.name}{rate}, policy {defaults.policy}, {conditions.ranks} GPUs, degrees"
        f" {degrees}, from {defaults.composition}, profile {conditions.profile};"
        f" mean TTFT over {load.seeds} seeds"
    )


def _told(turn: Turn) -> str:
    default = turn.dial.default
    lines = [f"{turn.dial.key} = {default:g} (default): {turn.means_s[default] * 1e3:.0f} ms"]
    for value, gain in turn.gains.items():
        mark = "  taken" if value == turn.taken else "  lower" if is_proven(gain) else ""
        lines.append(f"  {value:>6g}: {turn.means_s[value] * 1e3:.0f} ms, {_change(gain)}{mark}")
    return "\n".join(lines)


def _change(gain: Interval) -> str:
    return f"{0.0 - gain.mean:+.1%} ± {gain.half:.1%}"


def _verdict(found: Calibration) -> str:
    defaults_ms, chosen_ms = found.defaults_mean_s * 1e3, found.chosen_mean_s * 1e3
    text = f"mean TTFT of the second half: defaults {defaults_ms:.0f} ms"
    if not found.chosen.changed:
        return f"{text}; nothing was proven to be better"
    text += f", found values {chosen_ms:.0f} ms ({_change(found.gain)})"
    return text if found.proven else f"{text}: not proven there, so the defaults stay"


def _history(demand_s: float, conditions: Conditions) -> str:
    window_s = ReconfigurationSettings().window_s
    return (
        f"demand of the busiest {window_s:g} s: {demand_s:.1f} worker seconds; composition"
        f' "{AUTO}" begins with {initial_composition(demand_s, conditions)}'
    )


# --- the part of a configuration


def fragment(
    found: Calibration, dials: list[Dial], conditions: Conditions, demand_s: float
) -> Fragment:
    """Every key that was tried, with the value to use; κ_C, if it had to be found; and D."""
    sections: Fragment = {
        "cluster": {"historic_demands_s": [round(demand_s, 1)]},
        "placement": {"policy": found.defaults.policy},
    }
    changed = dict(found.kept.changed)
    for dial in dials:
        section, _, name = dial.key.partition(".")
        sections.setdefault(section, {})[name] = changed.get(dial.key, dial.default)
    shares = dict(conditions.capacity_shares)
    if shares and shares.items() != profile(conditions.profile).capacity_shares.items():
        sections["adaptation"]["capacity_shares"] = shares
    return sections


def toml(comment: str, sections: Fragment) -> str:
    """What is not a default says what the default is."""
    defaults = msgspec.to_builtins(Config())
    lines = [f"# {line}" for line in comment.splitlines()]
    for section, values in sections.items():
        lines += ["", f"[{section}]"]
        for key, value in values.items():
            default = defaults[section][key]
            note = "" if value == default else f"  # default: {_value(default)}"
            lines.append(f"{key} = {_value(value)}{note}")
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {item}" for key, item in value.items()) + "}"
    if isinstance(value, tuple):
        value = list(value)
    return f'"{value}"' if isinstance(value, str) else str(value)
