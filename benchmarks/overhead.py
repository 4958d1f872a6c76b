"""What the path around a prefill costs on an idle cluster, seen by the client.

``text`` and ``ids``: from sending a request to its first token, less the prefill itself; median of
uncached short prompts. Targets: 3 ms, and 1.5 ms with token ids. ``gap``: what one more step of a
request costs: the same prompts in one step and in a step for every layer. Target: 1 ms. The ratio
is the largest of the three figures over its target.
"""

from __future__ import annotations

import random

from harness import Client, daemon, median, result, say

REQUESTS = 60
CLUSTER = {"ranks": 2, "cp_degrees": [1, 2], "composition": "2CP1"}
NO_BORDERS, EVERY_LAYER = 1000.0, 1e-6


def prompts() -> list[list[int]]:
    rng = random.Random(7)
    return [[rng.randrange(1000, 40000) for _ in range(40)] for _ in range(REQUESTS)]


def overhead_ms(client: Client, batch: list[list[int]] | list[str]) -> float:
    found = []
    for prompt in batch:
        answer = client.complete(prompt)
        found.append(1e3 * (answer.first_token_s - answer.facts["prefill_s"]))
    return median(found)


def measure(step_s: float) -> tuple[float, float, int]:
    with daemon(cluster=CLUSTER, rank={"step_s": step_s}) as node:
        client = Client(node.port)
        for prompt in prompts()[:5]:
            client.complete([*prompt, 7])
        layers = client.get("/v1/cluster")["layers"]
        ids_ms = overhead_ms(client, prompts())
        texts = [f"{i}: the weather of day {i * 37} was " + "fine and dry " * 10 for i in range(60)]
        text_ms = overhead_ms(client, texts)
    say(f"step_s {step_s:g}: ids {ids_ms:.2f} ms, text {text_ms:.2f} ms")
    return ids_ms, text_ms, layers


ids_ms, text_ms, layers = measure(NO_BORDERS)
bordered_ms, _, _ = measure(EVERY_LAYER)
gap_ms = (bordered_ms - ids_ms) / (layers - 1)
result(
    text_ms=text_ms,
    ids_ms=ids_ms,
    gap_ms=gap_ms,
    ratio=max(text_ms / 3.0, ids_ms / 1.5, gap_ms / 1.0),
)
