"""A load that swings, on two real CPU ranks: following it against staying.

SmolLM2 on two pinned ranks, degrees 1 and 2, everything else as shipped, windows of 20 s included:
the controller decides by itself. A burst of short prompts, then long documents, as long and at the
same shares of what the ranks can do at degree 1 as those of ``swing.py``, by the profile's
predicted times, so the rates are known before anything runs. All prompts are new: nothing is
cached. A round takes twelve minutes.

The same arrivals are played to 2CP1 and 1CP2, fixed, and to a cluster that follows, which begins as
2CP1 in one round and as 1CP2 in the next; the order of the three is turned from round to round. The
ratio is the mean TTFT of following over that of the better fixed one, over all rounds;
``simulated`` is the same from the simulator, with the profile's times. The cores must be free:
ranks that wait for a core measure who else is there.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from harness import ROOT, Client, Daemon, daemon, result, say

from vertumnusd.live.cluster import LiveCluster
from vertumnusd.live.experiment import live_settings
from vertumnusd.live.load import replay
from vertumnusd.profile_file import read_profile
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.scenarios import HIGH, LOW
from vertumnusd.simulate.traces import Arrival
from vertumnusd.simulate.virtual import VirtualCluster

RANKS = 2
SHARES = {"short": HIGH, "long": LOW}
PHASES = ((40.0, "short"), (200.0, "long"))  # seconds of each
QUICK_PHASES = ((5.0, "short"), (25.0, "long"))
TOKENS = {"short": (64, 256), "long": (1_000, 2_000)}
FIXED = ("2CP1", "1CP2")
PROFILE = ROOT / "etc" / "profiles" / "smollm2-135m-instruct_cpu_float32.toml"
WATCH_S, WINDOW_S = 0.25, 20.0  # the latter as shipped
CONDITIONS = Conditions(
    profile=PROFILE.stem,
    ranks=RANKS,
    cp_degrees=(1, 2),
    noise_sigma=0.0,
    outside_s=0.0,
    switch_s=0.01,
)

Phases = Sequence[tuple[float, str]]


@dataclass(frozen=True, slots=True)
class Seen:
    """A run: TTFT by arrival, and compositions with the seconds at which they began."""

    ttft_s: np.ndarray
    compositions: list[tuple[float, str]]


def rate(kind: str) -> float:
    """Requests/s of a phase."""
    times = read_profile(PROFILE).prefill_time
    mean_s = np.mean([times.predict_s(1, n, 0) for n in range(*TOKENS[kind])])
    return SHARES[kind] * RANKS / float(mean_s)


def draw(phases: Phases, seed: int) -> tuple[list[Arrival], np.ndarray]:
    """The arrivals, and the number of each one's phase."""
    dice, start_s = np.random.default_rng(seed), 0.0
    drawn, phase = [], []
    for number, (seconds, kind) in enumerate(phases):
        at_s = start_s
        while (at_s := at_s + dice.exponential(1 / rate(kind))) < start_s + seconds:
            drawn.append(Arrival(at_s, int(dice.integers(*TOKENS[kind])), (), 1.0))
            phase.append(number)
        start_s += seconds
    return drawn, np.array(phase)


def play(drawn: Sequence[Arrival], composition: str, follows: bool) -> Seen:
    cluster = {"ranks": RANKS, "cp_degrees": [1, 2], "composition": composition}
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "admin.sock"
        sections = {
            "node": {"admin_socket": str(socket)},
            "cluster": cluster,
            "adaptation": {} if follows else {"automatic": False},
        }
        with daemon(**sections) as node, watched(node) as compositions:
            live = LiveCluster(socket, 1.0, Path(os.devnull), node.process.pid)
            replayed = replay(live, drawn)
    return Seen(np.array(replayed.ttft_s), compositions)


def simulate(drawn: Sequence[Arrival], composition: str, follows: bool) -> np.ndarray:
    """The TTFTs that the simulator predicts."""
    settings = live_settings(composition, follows, CONDITIONS, WINDOW_S)
    return VirtualCluster("ours", settings, CONDITIONS, False).run(drawn).ttft_s


@contextmanager
def watched(node: Daemon) -> Iterator[list[tuple[float, str]]]:
    """Compositions as they come, each with when it was first seen."""
    seen: list[tuple[float, str]] = []
    over, start = threading.Event(), time.monotonic()

    def watch() -> None:
        with Client(node.port) as client:
            while not over.wait(WATCH_S):
                view = client.get("/v1/cluster")
                if not view["operations"] and view["composition"] != (seen or [(0, "")])[-1][1]:
                    seen.append((round(time.monotonic() - start, 1), view["composition"]))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def sides(number: int) -> list[tuple[str, str, bool]]:
    """Name, composition at the start and whether it follows, in the order of this round."""
    each = [(name, name, False) for name in FIXED]
    each.append(("following", FIXED[number % len(FIXED)], True))
    return each[number % 3 :] + each[: number % 3]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short phases, for a look")
    parser.add_argument("--rounds", type=int, default=1, help="other arrivals in each (default: 1)")
    arguments = parser.parse_args()
    phases = QUICK_PHASES if arguments.quick else PHASES
    ttfts_s: dict[str, list[np.ndarray]] = {}
    simulated_s: dict[str, list[np.ndarray]] = {}
    followed, numbers = [], []
    for number in range(arguments.rounds):
        drawn, phase = draw(phases, number)
        numbers.append(phase)
        for name, composition, follows in sides(number):
            seen = play(drawn, composition, follows)
            ttfts_s.setdefault(name, []).append(seen.ttft_s)
            simulated_s.setdefault(name, []).append(simulate(drawn, composition, follows))
            means = [seen.ttft_s[phase == n].mean() for n in range(len(phases))]
            by_phase = " ".join(f"{mean:.2f}" for mean in means)
            say(f"round {number + 1}, {name}: mean {seen.ttft_s.mean():.3f} s, by phase {by_phase}")
            if follows:
                followed.append(seen.compositions)
                say("  " + ", ".join(f"{at_s:.1f} s {name}" for at_s, name in seen.compositions))
    report(len(phases), np.concatenate(numbers), joined(ttfts_s), joined(simulated_s), followed)


def joined(rounds: dict[str, list[np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate(each) for name, each in rounds.items()}


def report(
    phases: int,
    phase: np.ndarray,
    ttft_s: dict[str, np.ndarray],
    simulated_s: dict[str, np.ndarray],
    followed: list[list[tuple[float, str]]],
) -> None:
    def means(seconds: np.ndarray) -> list[float]:
        return [round(float(seconds[phase == n].mean()), 3) for n in range(phases)]

    best = min(FIXED, key=lambda name: ttft_s[name].mean())
    by_phase = {name: means(seconds) for name, seconds in ttft_s.items()}
    result(
        rates_per_s={kind: round(rate(kind), 2) for kind in TOKENS},
        requests=len(phase),
        failed=sum(int((~np.isfinite(seconds)).sum()) for seconds in ttft_s.values()),
        mean_ttft_s={name: round(float(seconds.mean()), 3) for name, seconds in ttft_s.items()},
        by_phase_s=by_phase,
        compositions=followed,
        best_fixed=best,
        ratio_by_phase=[
            round(mine / other, 3)
            for mine, other in zip(by_phase["following"], by_phase[best], strict=True)
        ],
        simulated=round(against_best(simulated_s), 3),
        ratio=round(against_best(ttft_s), 3),
    )


def against_best(ttft_s: dict[str, np.ndarray]) -> float:
    """Mean TTFT of following over that of the better fixed composition."""
    best_s = min(ttft_s[name].mean() for name in FIXED)
    return float(ttft_s["following"].mean() / best_s)


if __name__ == "__main__":
    main()
