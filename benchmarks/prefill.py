"""Cold prefill in the engine at degree 1 against transformers with its SDPA attention.

Both sides run the same SmolLM2 on one core, one thread each, in turn, in float32 and in bfloat16;
medians of wall times. The ratio is the smallest of transformers' time over the engine's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from statistics import median

import torch
from engine_ranks import EngineRanks, Shape, engine_ranks
from gguf_oracle import gguf_oracle, gguf_tokenizer
from harness import DOCUMENT, result, say
from transformers import PreTrainedModel

from vertumnusd.checkpoint import resolve

# By prompt length; where there are several, one more goes before them.
ROUNDS = {512: 5, 1024: 3, 2048: 3, 4096: 1, 8192: 1}


def timed(call: Callable[..., object], *args: object) -> float:
    started = time.perf_counter()
    call(*args)
    return time.perf_counter() - started


def main() -> None:
    torch.set_num_threads(1)
    cores = tuple(sorted(os.sched_getaffinity(0))[:1])
    os.sched_setaffinity(0, cores)
    path = resolve("SmolLM2-135M-Instruct")
    say("loading transformers' model from the GGUF file")
    oracle = gguf_oracle(path)
    text = gguf_tokenizer(path)(DOCUMENT)["input_ids"]
    tokens = (text * 2)[: max(ROUNDS)]
    figures: dict[str, dict[str, float]] = {}
    for dtype in ("float32", "bfloat16"):
        oracle.to(getattr(torch, dtype))
        shape = Shape(
            1, (1,), block_tokens=16, kv_blocks=1024, exchange_tokens=8192, dtype=dtype, cores=cores
        )
        with engine_ranks(path, shape) as engine:
            engine.adopt(1)
            for length, rounds in ROUNDS.items():
                figures[f"{length} {dtype}"] = compare(engine, oracle, tokens[:length], rounds)
                both = figures[f"{length} {dtype}"].items()
                say(f"{length} {dtype}: " + ", ".join(f"{n} {1e3 * s:.0f} ms" for n, s in both))
    gains = {name: s["transformers"] / s["engine"] for name, s in figures.items()}
    result(seconds=figures, gains=gains, target=1.0, ratio=min(gains.values()))


def compare(
    engine: EngineRanks, oracle: PreTrainedModel, tokens: list[int], rounds: int
) -> dict[str, float]:
    times: dict[str, list[float]] = {"transformers": [], "engine": []}
    warm = int(rounds > 1)  # a long prompt warms up by itself
    for _ in range(warm + rounds):
        times["transformers"].append(timed(last_token, oracle, tokens))
        request, _ = engine.begin(tokens)
        times["engine"].append(timed(engine.run, request, 0, engine.model.layers))
        engine.call(engine.worker, "discard", request)
    return {side: median(seconds[warm:]) for side, seconds in times.items()}


@torch.inference_mode()
def last_token(model: PreTrainedModel, tokens: list[int]) -> int:
    return int(model(torch.tensor([tokens]), logits_to_keep=1).logits[0, -1].argmax())


if __name__ == "__main__":
    main()
