"""A load that swings between short bursts and long documents: following it against staying.

Eight simulated ranks, degrees 1, 2 and 4, windows and everything else as shipped; bursts of two
windows, documents for ten. The fixed compositions of the ranks are played, and the one that follows
the load, from 8CP1. The ratio is its mean TTFT over that of the best fixed one; `each_phase_alone`
is the same ratio if each phase were played alone, caches empty, on the fixed composition that is
best for it. That is a bound only roughly: queues and caches carry over. A composition is not played
if another one, between it and the best, has been half as slow again as that: it would only be
slower.

Virtual time, so nothing that else runs on the machine matters; only these are measured, as CPU
time: `judgement_us`, to play one request to one composition of eight ranks, and `piece_ms`, of
what a judgement does at once at most, on forty ranks.

`--live PACE` then plays two of them, the best fixed and the one that follows, on paced ranks under
a real daemon, a second of whose profile lasts PACE seconds: at 0.5 eight minutes.

`--map` plays sixteen loads instead, bursts and documents each from leisure to the pool's limit and
for five windows, on two cores in some ten minutes: a table, and a picture in docs/plots. The ratio
is their geometric mean.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vertumnusd.control.fleet import parse_composition
from vertumnusd.control.prospects import PLAYED_AT_ONCE
from vertumnusd.control.what_if import Arrived, ttfts_s
from vertumnusd.live.cluster import live_cluster
from vertumnusd.live.experiment import SEED, SWING, live_settings, load_of
from vertumnusd.live.load import replay
from vertumnusd.live.run import Load
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.generate import generate
from vertumnusd.simulate.plots import HeatMap, heat_maps, require
from vertumnusd.simulate.policies import compositions
from vertumnusd.simulate.profiles import profile
from vertumnusd.simulate.traces import Arrival, arrivals
from vertumnusd.simulate.virtual import VirtualCluster

WINDOW_S = 20.0
CONDITIONS = Conditions(
    ranks=8, cp_degrees=(1, 2, 4), noise_sigma=0.0, outside_s=0.0, switch_s=0.002
)
BURSTS, DOCUMENTS = (0.6, 0.75, 0.9, 1.05), (0.3, 0.5, 0.7, 0.9)  # of what the pool could serve
HOPELESS = 1.5
MAP = Path(__file__).parent.parent / "docs" / "plots" / "swing_map.png"


class Means(NamedTuple):
    """Mean TTFT in seconds, of all requests and of each phase's."""

    all_s: float
    phases_s: list[float]


Played = tuple[Means, int]  # and the conversions


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


def of_the_map(shares: tuple[float, float]) -> Result:
    """Bursts and documents in turn, twice, at these shares of what the pool could serve."""
    bursts, documents = shares
    parts = ((5.0, bursts, "short"), (5.0, documents, "long")) * 2
    return compare(load_of("swing", parts, CONDITIONS, WINDOW_S))


def play(composition: str, follows: bool, load: Load, drawn: Sequence[Arrival]) -> Played:
    """Mean TTFT in seconds, of all requests and of each phase's; and the conversions."""
    settings = live_settings(composition, follows, CONDITIONS, WINDOW_S)
    outcome = VirtualCluster("ours", settings, CONDITIONS, False).run(drawn)
    return means(load, drawn, outcome.ttft_s), len(outcome.conversions)


def play_live(
    composition: str, follows: bool, load: Load, drawn: Sequence[Arrival], pace: float
) -> Played:
    """The same on paced ranks."""
    settings = live_settings(composition, follows, CONDITIONS, WINDOW_S)
    with live_cluster(settings, CONDITIONS.profile, pace) as cluster:
        ttft_s = np.array(replay(cluster, drawn).ttft_s)
        return means(load, drawn, ttft_s), len(cluster.conversions())


def means(load: Load, drawn: Sequence[Arrival], ttft_s: npt.NDArray[np.float64]) -> Means:
    phase = np.array([load.phase_of(arrival.at_s) for arrival in drawn])
    each = [float(ttft_s[phase == n].mean()) for n in sorted(set(phase.tolist()))]
    return Means(float(ttft_s.mean()), each)


def compare(load: Load) -> Result:
    drawn = drawn_of(load)
    fixed = fixed_compositions(load, drawn)
    best = min(fixed, key=lambda mix: fixed[mix].all_s)
    following, conversions = play("8CP1", True, load, drawn)
    parts = [[a for a in drawn if load.phase_of(a.at_s) == n] for n in range(len(load.phases))]
    alone_s = [
        min(each.all_s for each in fixed_compositions(load, part).values()) for part in parts
    ]
    return Result(
        requests=len(drawn),
        fixed_s={mix: each.all_s for mix, each in fixed.items()},
        best=best,
        following_s=following.all_s,
        conversions=conversions,
        by_phase=by_phase(following, fixed[best]),
        alone_s=float(np.average(alone_s, weights=[len(part) for part in parts])),
    )


def by_phase(one: Means, other: Means) -> tuple[float, ...]:
    return tuple(a / b for a, b in zip(one.phases_s, other.phases_s, strict=True))


def fixed_compositions(load: Load, drawn: Sequence[Arrival]) -> dict[str, Means]:
    """Those that could be the best one."""
    played: dict[str, Means] = {}
    for mix in compositions(CONDITIONS.cp_degrees, CONDITIONS.ranks):
        best = min(played, key=lambda name: played[name].all_s, default=mix)
        merged_too_far = any(
            is_merge_of(mix, other) and is_merge_of(other, best)
            for other, each in played.items()
            if each.all_s > HOPELESS * played[best].all_s
        )
        if not merged_too_far:
            played[mix], _ = play(mix, False, load, drawn)
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


def drawn_of(load: Load) -> list[Arrival]:
    return arrivals(generate(load.phases, SEED), 0, 0.0)


def cpu_s(degrees: Sequence[int]) -> float:
    """To play as many requests as a judgement does at once to workers of these degrees."""
    drawn = drawn_of(load_of("swing", SWING, CONDITIONS, WINDOW_S))[:PLAYED_AT_ONCE]
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
        for cell, result in zip(shares, pool.imap(of_the_map, shares), strict=True):
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
    parser.add_argument(
        "--live", type=float, metavar="PACE", help="also on paced ranks, at this pace"
    )
    arguments = parser.parse_args()
    if arguments.map:
        draw_map(arguments.processes)
        return
    load = load_of("swing", SWING, CONDITIONS, WINDOW_S)
    result = compare(load)
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
    print(json.dumps(facts), flush=True)
    if arguments.live is not None:
        print(json.dumps(live_facts(load, result.best, arguments.live)))


def live_facts(load: Load, best: str, pace: float) -> dict[str, object]:
    drawn = drawn_of(load)
    fixed, _ = play_live(best, False, load, drawn, pace)
    print(f"live, {best}: {fixed.all_s:.3f} s; now following", file=sys.stderr, flush=True)
    following, conversions = play_live("8CP1", True, load, drawn, pace)
    return {
        "live_fixed_mean_ttft_s": round(fixed.all_s, 3),
        "live_following_mean_ttft_s": round(following.all_s, 3),
        "by_phase": [round(ratio, 3) for ratio in by_phase(following, fixed)],
        "conversions": conversions,
        "ratio": round(following.all_s / fixed.all_s, 3),
    }


if __name__ == "__main__":
    main()
