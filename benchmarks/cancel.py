"""How long a client that leaves in the middle of a long prefill keeps anything busy.

Median time from closing the connection until no request, pin or reservation is left. Target: one
second; the ratio is the median over that.
"""

from __future__ import annotations

import json
import socket
import time

from harness import DOCUMENT, Client, daemon, median, result, say

ROUNDS = 5
LIMIT_S = 30.0


def holds(client: Client) -> bool:
    view = client.get("/v1/cluster")
    pinned = any(home["pinned_blocks"] or home["reserved_blocks"] for home in view["homes"])
    return bool(view["requests"]) or pinned


def runs(client: Client) -> bool:
    return any(request["layers_done"] for request in client.get("/v1/cluster")["requests"])


def wait(true: bool, what, client: Client) -> None:
    deadline = time.monotonic() + LIMIT_S
    while what(client) != true:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what.__name__} was not {true} within {LIMIT_S:.0f} s")
        time.sleep(0.005)


freed_s = []
with (
    daemon(cluster={"ranks": 2, "cp_degrees": [1, 2], "composition": "1CP2"}) as node,
    Client(node.port) as client,
):
    for i in range(ROUNDS):
        body = json.dumps({"prompt": f"Round {i}. {DOCUMENT}", "max_tokens": 4})
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", node.port)) as leaver:
            leaver.sendall((head + body).encode())
            wait(True, runs, client)
        left = time.monotonic()
        wait(False, holds, client)
        freed_s.append(time.monotonic() - left)
        say(f"freed after {freed_s[-1]:.2f} s")

result(freed_s=median(freed_s), slowest_s=max(freed_s), target_s=1.0, ratio=median(freed_s) / 1.0)
