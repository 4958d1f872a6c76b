"""A load that swings between short bursts and long documents: following it against staying.

Eight simulated ranks, degrees 1, 2 and 4, windows and everything else as shipped; phases of five
windows. Every fixed composition of the ranks is played, and the one that follows the load, from
8CP1. The ratio is its mean TTFT over that of the best fixed one; `each_phase_alone` is the same
ratio if each phase were played alone, caches empty, on the fixed composition that is best for it.
Virtual time, so nothing that else runs on the machine matters; only `judgement_us` is measured: CPU
time to play one request to one composition.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import numpy as np

from vertumnusd.control.what_if import Arrived, ttfts_s
from vertumnusd.live.experiment import SEED, live_settings, loads
from vertumnusd.live.run import Load
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.generate import generate
from vertumnusd.simulate.policies import compositions
from vertumnusd.simulate.profiles import profile
from vertumnusd.simulate.traces import Arrival, arrivals
from vertumnusd.simulate.virtual import VirtualCluster

WINDOW_S = 20.0
CONDITIONS = Conditions(
    ranks=8, cp_degrees=(1, 2, 4), noise_sigma=0.0, outside_s=0.0, switch_s=0.002
)


def play(
    composition: str, follows: bool, load: Load, drawn: Sequence[Arrival]
) -> tuple[float, list[float]]:
    """Mean TTFT in seconds, of all requests and of each phase's."""
    settings = live_settings(composition, follows, CONDITIONS, WINDOW_S)
    ttft_s = VirtualCluster("ours", settings, CONDITIONS, False).run(drawn).ttft_s
    phase = np.array([load.phase_of(arrival.at_s) for arrival in drawn])
    return float(ttft_s.mean()), [float(ttft_s[phase == n].mean()) for n in range(len(load.phases))]


def judgement_us(drawn: Sequence[Arrival]) -> float:
    requests = [Arrived(arrival.at_s, arrival.input_tokens, 0) for arrival in drawn[:512]]
    predicted, began = profile(CONDITIONS.profile).predicted, time.process_time()
    ttfts_s(requests, [4, 2, 1, 1], predicted, pausing=True, unplaced_wait_s=30.0)
    return (time.process_time() - began) / len(requests) * 1e6


def main() -> None:
    load = loads(CONDITIONS, WINDOW_S)[0]
    drawn = arrivals(generate(load.phases, SEED), 0, 0.0)
    mixes = compositions(CONDITIONS.cp_degrees, CONDITIONS.ranks)
    fixed = {mix: play(mix, False, load, drawn) for mix in mixes}
    best = min(fixed, key=lambda mix: fixed[mix][0])
    best_s, best_phases_s = fixed[best]
    mean_s, phases_s = play("8CP1", True, load, drawn)
    parts = [[a for a in drawn if load.phase_of(a.at_s) == n] for n in range(len(load.phases))]
    alone_s = [min(play(mix, False, load, part)[0] for mix in mixes) for part in parts]
    ideal_s = float(np.average(alone_s, weights=[len(part) for part in parts]))
    facts = {
        "requests": len(drawn),
        "fixed_mean_ttft_s": {mix: round(result[0], 3) for mix, result in fixed.items()},
        "best_fixed": best,
        "following_mean_ttft_s": round(mean_s, 3),
        "by_phase": [round(a / b, 3) for a, b in zip(phases_s, best_phases_s, strict=True)],
        "each_phase_alone": round(ideal_s / best_s, 3),
        "judgement_us": round(judgement_us(drawn), 1),
        "ratio": round(mean_s / best_s, 3),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
