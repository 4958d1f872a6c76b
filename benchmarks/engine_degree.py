"""Degree 2 on two cores against degree 1 on one, in the engine: where it pays, and how much.

SmolLM2 in float32. Each round runs both degrees in turn; medians of wall times. Short prompts show
from how many tokens on degree 2 wins, long ones how near it comes to 2, and a 90 % hit how much of
that is left when most of the prompt is cached. The ratio is the smallest of measured over wanted.
"""

from __future__ import annotations

import os
import time
from statistics import median

from engine_ranks import Chain, EngineRanks, Shape, engine_ranks
from harness import result, say

from vertumnusd.checkpoint import resolve

SHORT = (4, 8, 16, 24, 32, 48, 64)
WINS_FROM = 32  # tokens
SPEEDUPS = {256: 1.7, 1024: 1.9, 4096: 1.9}
HIT = (4096, 3680)  # tokens, and cached ones: 90 % in whole blocks
HIT_SPEEDUP = 1.75


def speedup(engine: EngineRanks, tokens: list[int], rounds: int, cached: int = 0) -> float:
    """Time at degree 1 over time at degree 2."""
    times: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds + 1):
        for degree in times:
            engine.adopt(degree)
            prefix: Chain | None = None
            if cached:
                _, prefix = engine.prefill(tokens[:cached])
            request, _ = engine.begin(tokens, prefix, cached)
            started = time.perf_counter()
            engine.run(request, 0, engine.model.layers)
            times[degree].append(time.perf_counter() - started)
            engine.call(engine.worker, "discard", request)
    one_s, two_s = (median(seconds[1:]) for seconds in times.values())
    of = f", {cached} of them cached" if cached else ""
    say(f"{len(tokens)} tokens{of}: {1e3 * one_s:.1f} and {1e3 * two_s:.1f} ms")
    return one_s / two_s


def main() -> None:
    cores = tuple(sorted(os.sched_getaffinity(0))[:2])
    shape = Shape(2, (1, 2), block_tokens=16, kv_blocks=1200, exchange_tokens=4096, cores=cores)
    with engine_ranks(resolve("SmolLM2-135M-Instruct"), shape) as engine:

        def prompt(length: int) -> list[int]:
            return [100 + i % 1000 for i in range(length)]

        short = {length: speedup(engine, prompt(length), 15) for length in SHORT}
        long = {length: speedup(engine, prompt(length), 3) for length in SPEEDUPS}
        hit = speedup(engine, prompt(HIT[0]), 3, HIT[1])
    losing = [length for length, gain in short.items() if gain <= 1.0]
    wins_from = min(length for length in (*SHORT, 256) if length > max(losing, default=0))
    result(
        short_speedups=short,
        speedups=long,
        hit_speedup=hit,
        wins_from_tokens=wins_from,
        targets={"wins_from_tokens": WINS_FROM, "speedups": SPEEDUPS, "hit_speedup": HIT_SPEEDUP},
        ratio=min(
            WINS_FROM / wins_from,
            hit / HIT_SPEEDUP,
            *(long[length] / wanted for length, wanted in SPEEDUPS.items()),
        ),
    )


if __name__ == "__main__":
    main()
