"""A load that swings between short bursts and long documents: following it against staying.

Eight simulated ranks, degrees 1, 2 and 4, windows and everything else as shipped; phases of five
windows. The fixed compositions of the ranks are played, and the one that follows the load, from
8CP1. The ratio is its mean TTFT over that of the best fixed one; `each_phase_alone` is the same
ratio if each phase were played alone, caches empty, on the fixed composition that is best for it.
That is a bound only roughly: queues and caches carry over. A composition is not played if another
one, between it and the best, has been half as slow again as that: it would only be slower.

Virtual time, so nothing that else runs on the machine matters; only these are measured, as CPU
time: `judgement_us`, to play one request to one composition of eight ranks, and `piece_ms`, of
what a judgement does at once at most, on forty ranks.

`--map` plays sixteen loads instead, bursts and documents each from leisure to the pool's limit, on
two cores in some ten minutes: a table, and a picture in docs/plots. The ratio is their geometric
mean.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path

import numpy as np

from vertumnusd.control.fleet import parse_composition
from vertumnusd.control.prospects import PLAYED_AT_ONCE
from vertumnusd.control.what_if import Arrived, ttfts_s
from vertumnusd.live.experiment import PHASE_WINDOWS, SEED, live_settings
from vertumnusd.live.run import Load
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.evaluation import rate_limit
from vertumnusd.simulate.experiment import Source
from vertumnusd.simulate.generate import Phase, generate
from vertumnusd.simulate.plots import HeatMap, heat_maps, require
from vertumnusd.simulate.policies import compositions
from vertumnusd.simulate.profiles import profile
from vertumnusd.simulate.scenarios import HIGH, MIDDLE
from vertumnusd.simulate.traces import Arrival, arrivals
from vertumnusd.simulate.virtual import VirtualCluster

WINDOW_S = 20.0
CONDITIONS = Conditions(
    ranks=8, cp_degrees=(1, 2, 4), noise_sigma=0.0, outside_s=0.0, switch_s=0.002
)
BURSTS, DOCUMENTS = (0.6, 0.75, 0.9, 1.05), (0.3, 0.5, 0.7, 0.9)  # of what the pool could serve
HOPELESS = 1.5
MAP = Path(__file__).parent.parent / "docs" / "plots" / "swing_map.png"


# Mean TTFT in seconds, of all requests and of each phase's; and the conversions.
Played = tuple[float, list[float], int]


@dataclass(frozen=True, slots=True)
class Result:
    """Mean TTFT in seconds of one load; by phase, following over the best fixed composition."""

    requests: int
    fixed_s: dict[str, float]
    best: str
    following_s: float
    conversions: int
    by_phase: tuple[float, ...]
    alone_s: float  # each phase played by itself on what is best for it

    @property
    def ratio(self) -> float:
        return self.following_s / self.fixed_s[self.best]

    @property
    def alone(self) -> float:
        return self.alone_s / self.fixed_s[self.best]


def load_of(bursts: float, documents: float) -> Load:
    """Bursts and documents in turn, twice, at these shares of what the pool could serve."""
    seconds = PHASE_WINDOWS * WINDOW_S
    phases = [
        Phase(
            seconds,
            share * rate_limit(Source(kind, phases=(Phase(100.0, 20.0, kind),)), CONDITIONS),
            kind,
        )
        for kind, share in (("short", bursts), ("long", documents))
    ]
    return Load("swing", tuple(phases * 2))


def play(composition: str, follows: bool, load: Load, drawn: Sequence[Arrival]) -> Played:
    """Mean TTFT in seconds, of all requests and of each phase's; and the conversions."""
    settings = live_settings(composition, follows, CONDITIONS, WINDOW_S)
    outcome = VirtualCluster("ours", settings, CONDITIONS, False).run(drawn)
    phase = np.array([load.phase_of(arrival.at_s) for arrival in drawn])
    each = [float(outcome.ttft_s[phase == n].mean()) for n in sorted(set(phase.tolist()))]
    return float(outcome.ttft_s.mean()), each, len(outcome.conversions)


def compare(shares: tuple[float, float]) -> Result:
    load = load_of(*shares)
    drawn = arrivals(generate(load.phases, SEED), 0, 0.0)
    fixed = fixed_compositions(load, drawn)
    best = min(fixed, key=lambda mix: fixed[mix][0])
    mean_s, phases_s, conversions = play("8CP1", True, load, drawn)
    parts = [[a for a in drawn if load.phase_of(a.at_s) == n] for n in range(len(load.phases))]
    alone_s = [min(each[0] for each in fixed_compositions(load, part).values()) for part in parts]
    return Result(
        requests=len(drawn),
        fixed_s={mix: each[0] for mix, each in fixed.items()},
        best=best,
        following_s=mean_s,
        conversions=conversions,
        by_phase=tuple(a / b for a, b in zip(phases_s, fixed[best][1], strict=True)),
        alone_s=float(np.average(alone_s, weights=[len(part) for part in parts])),
    )


def fixed_compositions(load: Load, drawn: Sequence[Arrival]) -> dict[str, Played]:
    """Those that could be the best one."""
    played: dict[str, Played] = {}
    for mix in compositions(CONDITIONS.cp_degrees, CONDITIONS.ranks):
        best = min(played, key=lambda name: played[name][0], default=mix)
        merged_too_far = any(
            is_merge_of(mix, other) and is_merge_of(other, best)
            for other, each in played.items()
            if each[0] > HOPELESS * played[best][0]
        )
        if not merged_too_far:
            played[mix] = play(mix, False, load, drawn)
    return played


def is_merge_of(mix: str, other: str) -> bool:
    """With no fewer workers of the largest degree, and no more of the smallest."""
    counts, others = (
        [
            worker.degree
            for worker in parse_composition(name, CONDITIONS.cp_degrees, CONDITIONS.ranks)
        ]
        for name in (mix, other)
    )
    largest, least = max(CONDITIONS.cp_degrees), min(CONDITIONS.cp_degrees)
    return counts.count(largest) >= others.count(largest) and counts.count(least) <= others.count(
        least
    )


def cpu_s(degrees: Sequence[int]) -> float:
    """To play as many requests as a judgement does at once to workers of these degrees."""
    drawn = arrivals(generate(load_of(HIGH, MIDDLE).phases, SEED), 0, 0.0)[:PLAYED_AT_ONCE]
    requests = [Arrived(arrival.at_s, arrival.input_tokens, 0) for arrival in drawn]
    predicted, began = profile(CONDITIONS.profile).predicted, time.process_time()
    ttfts_s(requests, degrees, predicted, pausing=True, unplaced_wait_s=30.0)
    return time.process_time() - began


def draw_map(processes: int) -> None:
    require()
    shares = [(bursts, documents) for documents in DOCUMENTS for bursts in BURSTS]
    results: dict[tuple[float, float], Result] = {}
    print("| bursts | documents | best fixed | s | following s | ratio | alone | phases | n |")
    print("| --- " * 9 + "|")
    with Pool(processes) as pool:
        for cell, result in zip(shares, pool.imap(compare, shares), strict=True):
            results[cell] = result
            print(_row(cell, result), flush=True)
    panels = [
        HeatMap(title, "bursts", "documents", BURSTS, DOCUMENTS, rows)
        for title, rows in (
            ("following / best fixed", _rows(results, lambda r: r.ratio)),
            ("each phase alone / best fixed", _rows(results, lambda r: r.alone)),
            ("worst phase, following / best fixed", _rows(results, lambda r: max(r.by_phase))),
        )
    ]
    heat_maps(MAP, panels)
    facts = {
        "worst_phase": round(max(max(r.by_phase) for r in results.values()), 3),
        "ratio": round(float(np.exp(np.mean([np.log(r.ratio) for r in results.values()]))), 3),
    }
    print(json.dumps(facts))


def _rows(
    results: dict[tuple[float, float], Result], value: Callable[[Result], float]
) -> list[list[float]]:
    return [[value(results[bursts, documents]) for bursts in BURSTS] for documents in DOCUMENTS]


def _row(cell: tuple[float, float], result: Result) -> str:
    bursts, documents = cell
    phases = " ".join(f"{ratio:.2f}" for ratio in result.by_phase)
    return (
        f"| {bursts} | {documents} | {result.best} | {result.fixed_s[result.best]:.3f} |"
        f" {result.following_s:.3f} | {result.ratio:.2f} | {result.alone:.2f} | {phases} |"
        f" {result.conversions} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--map", action="store_true", help="sixteen loads, as a table and a picture"
    )
    parser.add_argument("--processes", type=int, default=2, help="for --map (default: 2)")
    arguments = parser.parse_args()
    if arguments.map:
        draw_map(arguments.processes)
        return
    result = compare((HIGH, MIDDLE))
    facts = {
        "requests": result.requests,
        "fixed_mean_ttft_s": {mix: round(mean_s, 3) for mix, mean_s in result.fixed_s.items()},
        "best_fixed": result.best,
        "following_mean_ttft_s": round(result.following_s, 3),
        "by_phase": [round(ratio, 3) for ratio in result.by_phase],
        "each_phase_alone": round(result.alone, 3),
        "judgement_us": round(cpu_s([4, 2, 1, 1]) / PLAYED_AT_ONCE * 1e6, 1),
        "piece_ms": round(cpu_s([4] * 5 + [2] * 5 + [1] * 10) * 1e3, 2),
        "ratio": round(result.ratio, 3),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
