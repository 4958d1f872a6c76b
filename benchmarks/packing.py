"""Short prefills in one step against one by one: the throughput of the engine at degree 1.

Eight prompts of equal length, the same ones on both sides, which take turns in one run on one core.
The ratio is that of prompts a second at 16 tokens, packed over one by one, by medians.
"""

from __future__ import annotations

import os
import random
import time
from statistics import median

from engine_ranks import EngineRanks, Shape, engine_ranks
from harness import result, say

from vertumnusd.checkpoint import resolve

PROMPTS = 8
LENGTHS = (4, 16, 64, 256)
ROUNDS = 5


def seconds(engine: EngineRanks, prompts: list[list[int]], *, packed: bool) -> float:
    requests = [engine.begin(tokens)[0] for tokens in prompts]
    packs = [requests] if packed else [[request] for request in requests]
    started = time.perf_counter()
    for pack in packs:
        logits, failures = engine.run_pack(pack, 0, engine.model.layers)
        assert len(logits) == len(pack), failures
    elapsed_s = time.perf_counter() - started
    for request in requests:
        engine.call(engine.worker, "discard", request)
    return elapsed_s


def main() -> None:
    core = min(os.sched_getaffinity(0))
    shape = Shape(1, (1,), block_tokens=16, kv_blocks=1024, exchange_tokens=8192, cores=(core,))
    dice = random.Random(0)
    gains = {}
    with engine_ranks(resolve("SmolLM2-135M-Instruct"), shape) as engine:
        engine.adopt(1)
        for length in LENGTHS:
            prompts = [dice.choices(range(1000, 20_000), k=length) for _ in range(PROMPTS)]
            times: dict[bool, list[float]] = {True: [], False: []}
            for _ in range(ROUNDS + 1):
                for packed in times:
                    times[packed].append(seconds(engine, prompts, packed=packed))
            alone_s, packed_s = (median(times[packed][1:]) for packed in (False, True))
            gains[length] = alone_s / packed_s
            say(f"{length} tokens: {1e3 * alone_s:.0f} ms in turn, {1e3 * packed_s:.0f} ms packed")
    result(gains=gains, target=1.5, ratio=gains[16])


if __name__ == "__main__":
    main()
