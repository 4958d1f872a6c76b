"""What the path around a prefill costs on an idle cluster.

``text_ms`` and ``ids_ms``: from the arrival of a request at the door until its first token leaves
for the client, less the prefill itself, by the node's own clock; medians of uncached short prompts.
Targets: 3 ms, and 1.5 ms with token ids. ``wire_…``: the same as a bare socket client sees it, from
its write to the first byte of the first event. ``gap_ms``: what one more step of a request costs:
the same prompts in one step and in a step for every layer. Target: 1 ms. The ratio is the largest
of ``text_ms``, ``ids_ms`` and ``gap_ms`` over its target.
"""

from __future__ import annotations

import json
import random
import socket
import time

from harness import Client, daemon, median, result, say

REQUESTS, WARM_UP = 60, 5
CLUSTER = {"ranks": 2, "cp_degrees": [1, 2], "composition": "2CP1"}
NO_BORDERS, EVERY_LAYER = 1000.0, 1e-6


class Wire:
    """A bare HTTP client: one write, and reads until the stream ends."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def overheads_ms(self, prompt: str | list[int]) -> tuple[float, float]:
        """By the node's clock, and on the wire."""
        body = json.dumps({"prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": True})
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        message = (head + body).encode()
        started = time.perf_counter()
        self._socket.sendall(message)
        answer, first_s = b"", 0.0
        while not answer.endswith(b"0\r\n\r\n"):
            answer += self._socket.recv(65536)
            if not first_s and b"data: {" in answer:
                first_s = time.perf_counter() - started
        facts = {}
        for line in answer.split(b"\n"):
            if line.startswith(b"data: {"):
                facts |= json.loads(line[6:]).get("vertumnus", {})
        prefill_s = facts["prefill_s"]
        return 1e3 * (facts["ttft_s"] - prefill_s), 1e3 * (first_s - prefill_s)


def ids(rng: random.Random) -> list[int]:
    return [rng.randrange(1000, 40000) for _ in range(40)]


def text(rng: random.Random) -> str:
    return f"{rng.random()}: the weather of that day was " + "fine and dry " * 10


def measure(step_s: float) -> tuple[dict[str, float], int]:
    """Medians in ms by name, and the model's number of layers."""
    rng, found = random.Random(7), {}
    with daemon(cluster=CLUSTER, rank={"step_s": step_s}) as node:
        with Client(node.port) as client:
            layers = client.get("/v1/cluster")["layers"]
        for name, make in (("ids", ids), ("text", text)):
            wire = Wire(node.port)
            pairs = [wire.overheads_ms(make(rng)) for _ in range(WARM_UP + REQUESTS)][WARM_UP:]
            found[name] = median([node_ms for node_ms, _ in pairs])
            found[f"wire_{name}"] = median([wire_ms for _, wire_ms in pairs])
    say(f"step_s {step_s:g}: " + ", ".join(f"{k} {v:.2f} ms" for k, v in found.items()))
    return found, layers


whole, layers = measure(NO_BORDERS)
bordered, _ = measure(EVERY_LAYER)
gap_ms = (bordered["ids"] - whole["ids"]) / (layers - 1)
result(
    text_ms=whole["text"],
    ids_ms=whole["ids"],
    wire_text_ms=whole["wire_text"],
    wire_ids_ms=whole["wire_ids"],
    gap_ms=gap_ms,
    ratio=max(whole["text"] / 3.0, whole["ids"] / 1.5, gap_ms / 1.0),
)
