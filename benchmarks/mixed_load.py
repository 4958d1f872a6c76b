"""200 mixed requests at concurrency 16: no errors, and everything given back afterwards.

The ratio is the sum of the requests' times over the time of the run: how many requests
were in progress on average, of the 16 allowed.
"""

from __future__ import annotations

import random
import threading
import time
from queue import Empty, SimpleQueue

from harness import DOCUMENT, Client, daemon, result, say

REQUESTS, CONCURRENCY, SETTLE_S = 200, 16, 5.0
CLUSTER = {"ranks": 4, "cp_degrees": [1, 2], "composition": "1CP2/2CP1"}


def mixed_prompts() -> list[tuple[str, int]]:
    """(prompt, tokens to draw): short ones, middle ones, and some that share long prefixes."""
    rng = random.Random(11)
    words = DOCUMENT.split(" ")
    made = []
    for i in range(REQUESTS):
        kind = rng.random()
        if kind < 0.6:
            prompt = f"Question {i}: what is {i} times {rng.randrange(100)}?"
        elif kind < 0.9:
            start = rng.randrange(len(words) - 300)
            prompt = " ".join(words[start : start + rng.randrange(50, 300)])
        else:
            prompt = " ".join(words[: rng.choice((400, 800))]) + f" Remark {i}:"
        made.append((prompt, rng.choice((1, 4, 16))))
    return made


def work(
    port: int, todo: SimpleQueue[tuple[str, int]], done: list[float], errors: list[str]
) -> None:
    client = Client(port)
    while True:
        try:
            prompt, max_tokens = todo.get_nowait()
        except Empty:
            return
        try:
            done.append(client.complete(prompt, max_tokens).total_s)
        except (OSError, RuntimeError, KeyError) as error:
            errors.append(repr(error))
            client = Client(port)
        if len(done) % 20 == 0:
            say(f"{len(done)} of {REQUESTS}")


def leaks(port: int) -> dict[str, int]:
    """What is still held once nothing runs: everything should be 0."""
    client = Client(port)
    deadline = time.monotonic() + SETTLE_S
    while True:
        view = client.get("/v1/cluster")
        held = {
            "requests": len(view["requests"]),
            "waiting": view["waiting"]["requests"],
            "pinned_blocks": sum(h["pinned_blocks"] for h in view["homes"]),
            "reserved_blocks": sum(h["reserved_blocks"] for h in view["homes"]),
            "decode_blocks": sum(d["kv_blocks"] - d["free_blocks"] for d in view["decode"]),
        }
        if not any(held.values()) or time.monotonic() > deadline:
            return held
        time.sleep(0.05)


with daemon(cluster=CLUSTER) as node:
    todo: SimpleQueue[tuple[str, int]] = SimpleQueue()
    for item in mixed_prompts():
        todo.put(item)
    done: list[float] = []
    errors: list[str] = []
    arguments = (node.port, todo, done, errors)
    threads = [threading.Thread(target=work, args=arguments) for _ in range(CONCURRENCY)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed_s = time.monotonic() - started
    held = leaks(node.port)

for error in errors[:5]:
    say(error)
result(
    requests=len(done),
    errors=len(errors),
    leaked=held,
    elapsed_s=elapsed_s,
    ratio=sum(done) / elapsed_s,
)
