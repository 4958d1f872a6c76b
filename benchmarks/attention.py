"""Attention over a long prompt against the peak of the same operator, measured in the same run.

One layer of SmolLM2's shape in float32, one thread: causal attention over 8,192 tokens, once as
degree 1 computes it and once as the zigzag chunks of one rank of degree 2. The peak is the rate of
the same operator without a mask. Pairs of query and key are counted, so what a mask leaves out
counts for nothing. The ratio is the smaller share of the peak over the wanted one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from harness import result, say
from vertumnus_kernels.attention import attend, implementation

TOKENS, HEADS, KV_HEADS, HEAD_DIM = 8192, 9, 3, 64
ROUNDS = 5
WANTED = 0.85


def main() -> None:
    torch.set_num_threads(1)
    q_THD, k_SKD, v_SKD = (
        torch.randn(TOKENS, heads, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)
    )

    def run(start: int, stop: int, causal: bool) -> object:
        keys = slice(stop if causal else TOKENS)
        return attend(q_THD[start:stop], k_SKD[keys], v_SKD[keys], causal, HEAD_DIM**-0.5)

    quarter = TOKENS // 4

    def zigzag() -> None:
        run(quarter, 2 * quarter, True)
        run(2 * quarter, 3 * quarter, True)

    whole_pairs = TOKENS * (TOKENS + 1) // 2
    forms: dict[str, tuple[int, Callable[[], object]]] = {
        "unmasked": (TOKENS * TOKENS // 2, lambda: run(0, TOKENS // 2, False)),
        "causal": (whole_pairs, lambda: run(0, TOKENS, True)),
        "zigzag": (triangle(3 * quarter) - triangle(quarter), zigzag),
    }
    rates: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(ROUNDS):
        for name, (pairs, call) in forms.items():
            started = time.perf_counter()
            call()
            elapsed_s = time.perf_counter() - started
            rates[name].append(4e-9 * HEADS * HEAD_DIM * pairs / elapsed_s)
    gflops = {name: median(found) for name, found in rates.items()}
    say(", ".join(f"{name} {rate:.0f} GFLOP/s" for name, rate in gflops.items()))
    share = {name: gflops[name] / gflops["unmasked"] for name in ("causal", "zigzag")}
    result(
        implementation=implementation().name,
        gflops=gflops,
        share_of_peak=share,
        target=WANTED,
        ratio=min(share.values()) / WANTED,
    )


def triangle(tokens: int) -> int:
    """Pairs of a causal prompt."""
    return tokens * (tokens + 1) // 2


if __name__ == "__main__":
    main()
