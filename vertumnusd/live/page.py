"""``docs/live.md``: what ``vertumnusd reproduce --live`` has seen, in tables and a plot."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import NamedTuple

from vertumnusd.live.cluster import Conversion
from vertumnusd.live.run import NotPlayed, Run
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.page import table
from vertumnusd.simulate.plots import Panel, Series, lines
from vertumnusd.simulate.report import Interval

PLOT = "live.png"
PROMISED = 0.10  # of live and simulated mean TTFT


class Setting(NamedTuple):
    conditions: Conditions
    pace: float
    window_s: float


def write(
    folder: Path,
    setting: Setting,
    runs: Sequence[Run],
    left_out: Sequence[NotPlayed],
    elapsed_s: float,
) -> Path:
    """The page and its plot; where the page is. Raises PlotsMissing."""
    _plot(folder / "plots" / PLOT, runs)
    sections = [_head(setting, elapsed_s), _overall(runs), *map(not_played, left_out)]
    for _, group in _by_load(runs):
        sections += _load(group)
    sections.append(_conversions(runs))
    path = folder / "live.md"
    path.write_text("\n\n".join(sections) + "\n")
    return path


def _head(setting: Setting, elapsed_s: float) -> str:
    conditions, pace, window_s = setting
    degrees = ", ".join(map(str, conditions.cp_degrees))
    text = _paragraph(
        f"Written by `vertumnusd reproduce --live` in {elapsed_s / 60:.0f} minutes on"
        f" {os.cpu_count()} cores. Live is a real daemon with its doors, controller, leads and"
        f" {conditions.ranks} rank processes; the ranks compute nothing and take the time that"
        f" profile {conditions.profile} says, times {pace:g}. The simulator gets the same trace,"
        f" profile, settings and policy. Degrees {degrees}; windows of {window_s:g} s. Seconds"
        " are the profile's; TTFTs are means."
    )
    plot = f"![mean TTFT in the course of each load](plots/{PLOT})"
    return f"# Live against simulated\n\n{text}\n\n{plot}"


def _overall(runs: Sequence[Run]) -> str:
    worst = max(runs, key=lambda run: abs(math.log(run.ratio)))
    apart = math.expm1(abs(math.log(worst.ratio)))
    share = max(run.daemon_share for run in runs)
    late_s = max(run.latest_send_s for run in runs)
    gains = [_gain(group) for _, group in _by_load(runs)]
    return _paragraph(
        f"Live and simulated mean TTFT are {apart:.1%} apart at most ({worst.load.name} on"
        f" {worst.name}; promised: {PROMISED:.0%}). The daemon took up to {share:.0%} of a core;"
        f" the latest request was sent {late_s * 1e3:.0f} ms late. {' '.join(filter(None, gains))}"
    )


def _paragraph(text: str) -> str:
    return fill(text, 110, break_long_words=False, break_on_hyphens=False)


def _gain(runs: Sequence[Run]) -> str:
    """The composition that follows the load against the best fixed one."""
    following = [run for run in runs if run.follows]
    fixed = [run for run in runs if not run.follows]
    if not following or not fixed:
        return ""
    best = min(fixed, key=lambda run: run.live_s)
    live = following[0].live_s / best.live_s
    simulated = following[0].simulated_s / best.simulated_s
    return (
        f"On {best.load.name}, following the load took {live:.2f} times the TTFT of"
        f" {best.composition}, the best fixed composition; in the simulator {simulated:.2f} times."
    )


def not_played(run: NotPlayed) -> str:
    return (
        f"{run.load.name} on {run.composition} was not played: {run.requests:,} requests would wait"
        " at once, more than a node has connections."
    )


# --- TTFT


def _load(group: Sequence[Run]) -> list[str]:
    load, failures = group[0].load, sum(run.failed for run in group)
    failed = f" on each composition, {failures} failed" if failures else ""
    kinds = [f"{p.seconds:g} s of {p.kind}, {p.rate:.1f}/s" for p in load.phases]
    rows = [
        [run.name, f"{run.live_s:.3f}", f"{run.simulated_s:.3f}", f"{run.ratio:.3f}"]
        + [f"{live:.2f} / {simulated:.2f}" for live, simulated in run.phases]
        for run in group
    ]
    return [
        f"## {load.name.capitalize()}",
        f"{group[0].requests:,} requests{failed}. By phase: live / simulated.",
        table(("composition", "live", "simulated", "ratio", *kinds), rows),
    ]


def _by_load(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    return [(name, list(group)) for name, group in groupby(runs, lambda run: run.load.name)]


# --- conversions


def _conversions(runs: Sequence[Run]) -> str:
    rows = []
    for run in runs:
        for kind in ("split", "merge"):
            live = [c for c in run.conversions if c.kind == kind]
            simulated = [c for c in run.simulated if c.kind == kind]
            if live or simulated:
                rows.append([run.load.name, kind, *_count(live, simulated)])
    times = ("drain, s", "longest", "switch, ms", "longest")
    return f"""## Splits and merges

Live / simulated; medians. The drain is from the order until the worker's last request is over, the
switch from then until the new workers serve; the simulator's switch is given.

{table(("load", "kind", "number", "rolled back", *times), rows)}"""


def _count(live: Sequence[Conversion], simulated: Sequence[Conversion]) -> list[str]:
    rolled_back = sum(c.outcome != "exposed" for c in live)
    drains = [[c.drain_s for c in each] for each in (live, simulated)]
    switches = [[c.switch_s * 1e3 for c in each if c.switch_s] for each in (live, simulated)]
    return [
        f"{len(live)} / {len(simulated)}",
        str(rolled_back),
        " / ".join(_figure(median, each, 2) for each in drains),
        " / ".join(_figure(max, each, 2) for each in drains),
        " / ".join(_figure(median, each, 1) for each in switches),
        " / ".join(_figure(max, each, 1) for each in switches),
    ]


def _figure(of: Callable[[Sequence[float]], float], values: Sequence[float], digits: int) -> str:
    return f"{of(values):.{digits}f}" if values else "–"


def summary(run: Run) -> str:
    """For people who wait for the rest."""
    text = (
        f"{run.load.name} on {run.name}: {run.requests} requests ({run.failed} failed),"
        f" mean TTFT live {run.live_s:.3f} s, simulated {run.simulated_s:.3f} s,"
        f" ratio {run.ratio:.3f}; daemon {run.daemon_share:.0%} of a core"
    )
    phases = "  ".join(f"{live:.2f}/{simulated:.2f}" for live, simulated in run.phases)
    text += f"\n  by phase, live/simulated: {phases}"
    if run.conversions:
        number, _, drain, longest, switch, longest_switch = _count(run.conversions, run.simulated)
        text += (
            f"\n  {number} conversions: drain {drain} s, longest {longest} s;"
            f" switch {switch} ms, longest {longest_switch} ms"
        )
    return text


# --- the plot


def _plot(path: Path, runs: Sequence[Run]) -> None:
    """A panel for each load: the composition that follows, and the best fixed one."""
    panels = []
    for name, group in _by_load(runs):
        best = min(
            (run for run in group if not run.follows), key=lambda run: run.live_s, default=None
        )
        shown = [run for run in group if run.follows or run is best]
        title = f"{name}: mean TTFT by arrival"
        series = [line for run in shown for line in _series(run)]
        borders = tuple(group[0].load.borders)
        panels.append(Panel(title, "seconds", "seconds", series, log_y=True, borders=borders))
    lines(path, panels, columns=1, width=9.0)


def _series(run: Run) -> list[Series]:
    part_s = run.load.seconds / len(run.course)
    lives, simulated = (
        [
            ((n + 0.5) * part_s, Interval(pair[side], 0.0))
            for n, pair in enumerate(run.course)
            if pair[side] > 0
        ]
        for side in (0, 1)
    )
    return [
        Series(f"{run.name}, live", lives),
        Series(f"{run.name}, simulated", simulated, marks_only=True),
    ]
