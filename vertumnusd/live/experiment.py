"""``vertumnusd reproduce --live``: the same traces on paced ranks and in the simulator.

Live is a real daemon with its controller, leads, processes and messages; only the ranks' computing
is replaced by waiting. The simulator gets the same trace, profile, settings and policy. Two loads:

* *six phases*, the shape of the published experiment: low and high load, short and long inputs;
* *swing*: long documents, interrupted by short bursts of short requests.

Each is played with the composition that follows the load and with fixed ones; ``page.py`` writes
``docs/live.md``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np

from vertumnusd.config import ConfigError
from vertumnusd.control.settings import ReconfigurationSettings, Settings
from vertumnusd.live import page
from vertumnusd.live.cluster import Conversion, live_cluster
from vertumnusd.live.load import CONNECTIONS, Replayed, replay
from vertumnusd.live.run import Load, NotPlayed, Run, means, most_at_once
from vertumnusd.simulate import plots
from vertumnusd.simulate.choice import Choice
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.controlled import settings as simulated_settings
from vertumnusd.simulate.evaluation import rate_limit
from vertumnusd.simulate.experiment import GENERATOR_SEED, Source
from vertumnusd.simulate.generate import Phase, generate
from vertumnusd.simulate.outcome import Outcome
from vertumnusd.simulate.scenarios import HIGH, LOW, SCENARIOS
from vertumnusd.simulate.traces import Arrival, arrivals
from vertumnusd.simulate.virtual import VirtualCluster

SEED = GENERATOR_SEED + 7
DEGREES = (1, 2, 4)
# Phases of a load: windows, share of what the pool could serve of such requests, their kind.
Parts = Sequence[tuple[float, float, str]]
SWING: Parts = ((2.0, HIGH, "short"), (10.0, LOW, "long")) * 2
SIX_PHASES: Parts = [(5.0, share, kind) for _, share, kind in SCENARIOS["six phases"]]
PARTS_OF_A_PHASE = 8  # points of the plot
QUEUE_TOKENS, QUEUE_S = 10**12, 1e6  # nothing is refused: a comparison needs every request to end


def reproduce_live(arguments: argparse.Namespace) -> int:
    """Play everything, print it and write the page. Returns the exit status.

    Raises ConfigError for what cannot be run or written, before anything is.
    """
    _check(arguments)
    started = time.monotonic()
    runs, left_out = _play_all(arguments)
    if not runs:
        print("nothing could be played: fewer --ranks ask for less", file=sys.stderr)
        return 1
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([_facts(run) for run in runs], indent=1))
    setting = page.Setting(_conditions(arguments), arguments.pace, arguments.window)
    path = page.write(arguments.out, setting, runs, left_out, time.monotonic() - started)
    worst = max(abs(math.log(run.ratio)) for run in runs)
    print(f"live against simulated mean TTFT: at most {math.expm1(worst):.1%} apart")
    print(f"{path} and its plot written")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    largest = max(DEGREES)
    if arguments.ranks % largest:
        raise ConfigError(
            f"--ranks {arguments.ranks}: a multiple of {largest}, the largest degree, is expected"
        )
    try:
        plots.require()
        arguments.out.mkdir(parents=True, exist_ok=True)
    except plots.PlotsMissing as error:
        raise ConfigError(str(error)) from error
    except OSError as error:
        raise ConfigError(f"--out {arguments.out}: {error.strerror}") from error


def _conditions(arguments: argparse.Namespace) -> Conditions:
    return Conditions(
        ranks=arguments.ranks,
        cp_degrees=DEGREES,
        noise_sigma=0.0,
        outside_s=0.0,
        switch_s=0.002,
    )


def _play_all(arguments: argparse.Namespace) -> tuple[list[Run], list[NotPlayed]]:
    """Every load on every composition; each result is printed when it is there."""
    runs: list[Run] = []
    left_out: list[NotPlayed] = []
    conditions = _conditions(arguments)
    for load in loads(conditions, arguments.window):
        for composition, follows in _compositions(conditions):
            _say(f"{load.name}, {composition}{', following the load' if follows else ''}")
            run = _run(load, composition, follows, conditions, arguments)
            if isinstance(run, NotPlayed):
                left_out.append(run)
                print(page.not_played(run), flush=True)
            else:
                runs.append(run)
                print(page.summary(run), flush=True)
    return runs, left_out


def loads(conditions: Conditions, window_s: float) -> list[Load]:
    return [
        load_of("swing", SWING, conditions, window_s),
        load_of("six phases", SIX_PHASES, conditions, window_s),
    ]


def load_of(name: str, parts: Parts, conditions: Conditions, window_s: float) -> Load:
    phases = (
        Phase(windows * window_s, share * _limit(kind, conditions), kind)
        for windows, share, kind in parts
    )
    return Load(name, tuple(phases))


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
) -> Run | NotPlayed:
    drawn = arrivals(generate(load.phases, SEED), 0, 0.0)
    settings = live_settings(composition, follows, conditions, arguments.window)
    simulated = VirtualCluster("ours", settings, conditions, False).run(drawn)
    waiting = most_at_once(np.array([arrival.at_s for arrival in drawn]), simulated.ttft_s)
    if waiting > CONNECTIONS:
        return NotPlayed(load, composition, waiting)
    with live_cluster(settings, conditions.profile, arguments.pace) as cluster:
        replayed = replay(cluster, drawn)
        conversions = cluster.conversions()
    return _compare(load, drawn, composition, follows, simulated, replayed, conversions)


def _compare(
    load: Load,
    drawn: Sequence[Arrival],
    composition: str,
    follows: bool,
    simulated: Outcome,
    replayed: Replayed,
    conversions: Sequence[Conversion],
) -> Run:
    live, at_s = np.array(replayed.ttft_s), np.array([arrival.at_s for arrival in drawn])
    served, parts = np.isfinite(live), PARTS_OF_A_PHASE * len(load.phases)
    phase = np.array([load.phase_of(s) for s in at_s])[served]
    part = np.minimum(at_s * parts / load.seconds, parts - 1).astype(int)[served]
    ttfts_s = live[served], simulated.ttft_s[served]
    ((live_s, simulated_s),) = means(np.zeros_like(phase), 1, *ttfts_s)
    return Run(
        load=load,
        composition=composition,
        follows=follows,
        requests=len(drawn),
        failed=int((~served).sum()),
        live_s=live_s,
        simulated_s=simulated_s,
        phases=means(phase, len(load.phases), *ttfts_s),
        course=means(part, parts, *ttfts_s),
        live_hit_rate=sum(replayed.cached_tokens) / sum(a.input_tokens for a in drawn),
        latest_send_s=replayed.late_s,
        daemon_share=replayed.daemon_share,
        conversions=tuple(conversions),
        simulated=tuple(
            Conversion(
                "split" if len(c.after) > len(c.before) else "merge",
                "exposed",
                c.drain_s,
                c.switch_s,
            )
            for c in simulated.conversions
        ),
    )


def _say(text: str) -> None:
    print(f"  {text} …", file=sys.stderr, flush=True)


def _facts(run: Run) -> dict[str, Any]:
    return {**asdict(run), "ratio": run.ratio}
