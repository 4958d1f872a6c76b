"""``vertumnusd reproduce --live``: the same traces on paced ranks and in the simulator.

Live is a real daemon with its controller, leads, processes and messages; only the ranks' computing
is replaced by waiting. The simulator gets the same trace, profile, settings and policy. Two loads:

* *six phases*, the shape of the published experiment: low and high load, short and long inputs;
* *swing*: bursts of short requests and long documents in turn.

Each is played with the composition that follows the load and with fixed ones.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec
import numpy as np

from vertumnusd.control.settings import ReconfigurationSettings, Settings
from vertumnusd.live.cluster import Conversion, live_cluster
from vertumnusd.live.load import replay
from vertumnusd.simulate.choice import Choice
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.controlled import settings as simulated_settings
from vertumnusd.simulate.evaluation import rate_limit
from vertumnusd.simulate.experiment import GENERATOR_SEED, Source
from vertumnusd.simulate.generate import Phase, generate
from vertumnusd.simulate.scenarios import HIGH, MIDDLE, SCENARIOS
from vertumnusd.simulate.traces import Arrival, arrivals
from vertumnusd.simulate.virtual import VirtualCluster

SEED = GENERATOR_SEED + 7
PHASE_WINDOWS = 5  # a phase of a load is so many windows long
SWING = (
    (1.0, HIGH, "short"),
    (1.0, MIDDLE, "long"),
    (1.0, HIGH, "short"),
    (1.0, MIDDLE, "long"),
)
QUEUE_TOKENS, QUEUE_S = 10**12, 1e6  # nothing is refused: a comparison needs every request to end


@dataclass(frozen=True, slots=True)
class Run:
    """One load on one composition, live and simulated, in the profile's seconds."""

    load: str
    composition: str
    follows: bool
    requests: int
    failed: int
    live_s: float  # mean TTFT
    simulated_s: float
    phases: tuple[tuple[float, float], ...]  # the same, by phase of the load
    live_hit_rate: float
    latest_send_s: float
    conversions: tuple[Conversion, ...]
    simulated_conversions: int

    @property
    def ratio(self) -> float:
        return self.live_s / self.simulated_s


@dataclass(frozen=True, slots=True)
class Load:
    name: str
    phases: tuple[Phase, ...]

    def phase_of(self, at_s: float) -> int:
        ends = np.cumsum([phase.seconds for phase in self.phases])
        return min(int(np.searchsorted(ends, at_s, side="right")), len(ends) - 1)


def reproduce_live(arguments: argparse.Namespace) -> int:
    """Play everything and print it. Returns the exit status."""
    conditions = Conditions(
        ranks=arguments.ranks,
        cp_degrees=(1, 2, 4),
        noise_sigma=0.0,
        outside_s=0.0,
        switch_s=0.002,
    )
    runs = []
    for load in loads(conditions, arguments.window):
        for composition, follows in _compositions(conditions):
            _say(f"{load.name}, {composition}{', following the load' if follows else ''}")
            runs.append(_run(load, composition, follows, conditions, arguments))
            _print(runs[-1])
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([_facts(run) for run in runs], indent=1))
    worst = max(abs(math.log(run.ratio)) for run in runs)
    print(f"live against simulated mean TTFT: at most {math.expm1(worst):.1%} apart")
    return 0


def loads(conditions: Conditions, window_s: float) -> list[Load]:
    """Rates are shares of what the pool could serve of each kind of request."""

    def phases(parts: Sequence[tuple[float, float, str]]) -> tuple[Phase, ...]:
        seconds = PHASE_WINDOWS * window_s
        return tuple(
            Phase(seconds, load * _limit(kind, conditions), kind) for _, load, kind in parts
        )

    return [Load("swing", phases(SWING)), Load("six phases", phases(SCENARIOS["six phases"]))]


def _limit(kind: str, conditions: Conditions) -> float:
    return rate_limit(Source(kind, phases=(Phase(100.0, 20.0, kind),)), conditions)


def _compositions(conditions: Conditions) -> list[tuple[str, bool]]:
    ranks, degrees = conditions.ranks, conditions.cp_degrees
    start = f"{ranks // degrees[1]}CP{degrees[1]}"
    return [(start, True), *((f"{ranks // degree}CP{degree}", False) for degree in degrees)]


def live_settings(
    composition: str, follows: bool, conditions: Conditions, window_s: float
) -> Settings:
    """What the simulator is told, within the bounds of a configuration file.

    Copies take the time that they take: it cannot be paced, so no prefix is fetched.
    """
    choice = Choice("ours", composition, reconfigures=follows, left_out=("fetch",))
    defaults = ReconfigurationSettings()
    scale = window_s / defaults.window_s
    reconfiguration = ReconfigurationSettings(
        automatic=follows, window_s=window_s, dwell_s=defaults.dwell_s * scale
    )
    return msgspec.structs.replace(
        simulated_settings(choice, conditions),
        reconfiguration=reconfiguration,
        max_queue_tokens=QUEUE_TOKENS,
        max_queue_s=QUEUE_S,
        unplaced_wait_s=QUEUE_S,
    )


def _run(
    load: Load,
    composition: str,
    follows: bool,
    conditions: Conditions,
    arguments: argparse.Namespace,
) -> Run:
    drawn = arrivals(generate(load.phases, SEED), 0, 0.0)
    settings = live_settings(composition, follows, conditions, arguments.window)
    simulated = VirtualCluster("ours", settings, conditions, False).run(drawn)
    with live_cluster(settings, conditions.profile, arguments.pace) as cluster:
        replayed = replay(cluster, drawn)
        conversions = cluster.conversions()
    live = np.array(replayed.ttft_s)
    return Run(
        load=load.name,
        composition=composition,
        follows=follows,
        requests=len(drawn),
        failed=int((~np.isfinite(live)).sum()),
        live_s=float(live.mean()),
        simulated_s=float(simulated.ttft_s.mean()),
        phases=_by_phase(load, drawn, live, simulated.ttft_s),
        live_hit_rate=sum(replayed.cached_tokens) / sum(a.input_tokens for a in drawn),
        latest_send_s=replayed.late_s / arguments.pace,
        conversions=tuple(conversions),
        simulated_conversions=len(simulated.conversions),
    )


def _by_phase(
    load: Load, drawn: Sequence[Arrival], live: Any, simulated: Any
) -> tuple[tuple[float, float], ...]:
    phase = np.array([load.phase_of(arrival.at_s) for arrival in drawn])
    return tuple(
        (float(live[phase == n].mean()), float(simulated[phase == n].mean()))
        for n in range(len(load.phases))
    )


def _say(text: str) -> None:
    print(f"  {text} …", file=sys.stderr, flush=True)


def _print(run: Run) -> None:
    follows = " following the load" if run.follows else ""
    print(
        f"{run.load} on {run.composition}{follows}: {run.requests} requests ({run.failed} failed),"
        f" mean TTFT live {run.live_s:.3f} s, simulated {run.simulated_s:.3f} s,"
        f" ratio {run.ratio:.3f}"
    )
    phases = "  ".join(f"{live:.2f}/{simulated:.2f}" for live, simulated in run.phases)
    print(f"  by phase, live/simulated: {phases}")
    if run.conversions:
        drains = sorted(conversion.drain_s for conversion in run.conversions)
        switches = sorted(conversion.switch_s for conversion in run.conversions)
        print(
            f"  {len(run.conversions)} conversions ({run.simulated_conversions} simulated):"
            f" drain median {np.median(drains):.2f} s, longest {drains[-1]:.2f} s;"
            f" switch median {np.median(switches) * 1e3:.1f} ms,"
            f" longest {switches[-1] * 1e3:.1f} ms"
        )
    sys.stdout.flush()


def _facts(run: Run) -> dict[str, Any]:
    return {**asdict(replace(run)), "ratio": run.ratio}
