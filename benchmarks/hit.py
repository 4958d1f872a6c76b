"""A 95 % prefix hit against the cold prefill of the same prompt. Target: 8 times less time."""

from __future__ import annotations

from harness import DOCUMENT, Client, daemon, median, result, say

ROUNDS = 3

cold, hit, share = [], [], []
with daemon(cluster={"ranks": 2, "cp_degrees": [1, 2], "composition": "1CP2"}) as node:
    client = Client(node.port)
    client.complete("Warm up.")
    words = DOCUMENT.split(" ")
    shared = " ".join(words[: int(len(words) * 0.955)])
    tail = " ".join(words[int(len(words) * 0.955) :])
    for i in range(ROUNDS):
        first = client.complete(f"Copy {i}. {shared} {tail}")
        second = client.complete(f"Copy {i}. {shared} Otherwise: {tail}")
        assert first.cached_tokens == 0
        cold.append(first.facts["prefill_s"])
        hit.append(second.facts["prefill_s"])
        share.append(second.cached_tokens / second.input_tokens)
        say(f"cold {cold[-1]:.2f} s, {share[-1]:.1%} hit {hit[-1]:.3f} s")

result(
    cold_s=median(cold),
    hit_s=median(hit),
    hit_rate=median(share),
    target=8.0,
    ratio=median(cold) / median(hit),
)
