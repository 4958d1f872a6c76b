"""Cold prefill in the engine: against transformers on one core, and degree 2 against degree 1.

Both sides run the same SmolLM2 in float32, one thread each, in turn; medians of wall times. The
ratio is the smallest of transformers' time over the engine's at degree 1 (above 1: we are faster).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from statistics import median

import torch
from engine_ranks import Shape, engine_ranks
from gguf_oracle import gguf_oracle, gguf_tokenizer, last_logits
from harness import DOCUMENT, result, say

from vertumnusd.checkpoint import resolve

ROUNDS = {64: 9, 256: 7, 1024: 5, 4096: 3}  # by prompt length


def timed(call: Callable[..., object], *args: object) -> float:
    started = time.perf_counter()
    call(*args)
    return time.perf_counter() - started


def main() -> None:
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:1])
    path = resolve("SmolLM2-135M-Instruct")
    say("loading transformers' model from the GGUF file")
    oracle = gguf_oracle(path)
    text = gguf_tokenizer(path)(DOCUMENT)["input_ids"]
    shape = Shape(
        2, (1, 2), block_tokens=16, kv_blocks=1024, exchange_tokens=4096, cores=tuple(cores[:2])
    )
    figures = {}
    with engine_ranks(path, shape) as engine:
        for length, rounds in ROUNDS.items():
            tokens = text[:length]
            times: dict[str, list[float]] = {"transformers": [], "degree 1": [], "degree 2": []}
            for _ in range(rounds + 1):
                times["transformers"].append(timed(last_logits, oracle, tokens))
                for degree in (1, 2):
                    engine.adopt(degree)
                    request, _ = engine.begin(tokens)
                    times[f"degree {degree}"].append(
                        timed(engine.run, request, 0, engine.model.layers)
                    )
                    engine.call(engine.worker, "discard", request)
            figures[length] = {side: median(seconds[1:]) for side, seconds in times.items()}
            shown = ", ".join(f"{side} {1e3 * s:.0f} ms" for side, s in figures[length].items())
            say(f"{length} tokens: {shown}")
    result(
        seconds={str(length): sides for length, sides in figures.items()},
        degree_2_speedup={str(n): s["degree 1"] / s["degree 2"] for n, s in figures.items()},
        ratio=min(s["transformers"] / s["degree 1"] for s in figures.values()),
    )


if __name__ == "__main__":
    main()
