"""Splits and merges of real CPU ranks: how long a switch takes, and whether anything grows.

Four ranks cycle 1CP4 → 2CP2 → 4CP1 → 2CP2 → 1CP4 under a trickle of requests. A switch is the time
from the end of a drain until the new workers serve; it should take no more than 50 ms. Memory of
the daemon and of its ranks is compared after a first tenth of the cycles and at the end.

The ratio is the P99 of the switches over 50 ms: below 1 is as promised.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
from pathlib import Path
from typing import Any

from harness import Client, Daemon, children, daemon, result, say

from vertumnusd import admin
from vertumnusd.admin_address import admin_socket_path

PROMISED_S = 0.050
ROUND = (
    ("split", ["CP4[0-3]"]),
    ("split", ["CP2[0-1]", "CP2[2-3]"]),
    ("merge", ["CP1[0]", "CP1[1]", "CP1[2]", "CP1[3]"]),
    ("merge", ["CP2[0-1]", "CP2[2-3]"]),
)
CLUSTER = {"ranks": 4, "cp_degrees": [1, 2, 4], "composition": "1CP4"}
PROMPT = "A short question, asked again and again: what is the time?"


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def held(node: Daemon) -> dict[str, int]:
    """Memory and descriptors of the daemon and its ranks."""
    pids = [node.process.pid, *children(node.process.pid)]
    return {
        "bytes": sum(map(resident_bytes, pids)),
        "descriptors": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
    }


def cycle(node: Daemon, cycles: int) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """All conversions, and what was held after the first tenth of the cycles."""
    operator = admin.Daemon.by_socket(admin_socket_path("", node.port))
    conversions: list[dict[str, Any]] = []
    first: dict[str, int] = {}
    for n in range(cycles):
        kind, workers = ROUND[n % len(ROUND)]
        answer = operator.ask("POST", f"/v1/admin/{kind}", {"workers": workers})
        conversions += answer["converted"]
        if n == cycles // 10:
            first = held(node)
        if n % 50 == 49:
            say(f"{n + 1} of {cycles} cycles")
    return conversions, first


def trickle(port: int, over: threading.Event, texts: set[str]) -> None:
    with Client(port) as client:
        while not over.is_set():
            texts.add(client.complete(PROMPT, 2).text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=500)
    cycles = parser.parse_args().cycles
    over, texts = threading.Event(), set[str]()
    with daemon(cluster=CLUSTER, adaptation={"automatic": False}) as node:
        requests = threading.Thread(target=trickle, args=(node.port, over, texts))
        requests.start()
        conversions, first = cycle(node, cycles)
        over.set()
        requests.join()
        last = held(node)
    switches = sorted(c["switch_s"] for c in conversions if c["outcome"] == "exposed")
    drains = sorted(c["drain_s"] for c in conversions)
    p99 = switches[int(0.99 * (len(switches) - 1))]
    result(
        cycles=cycles,
        conversions=len(conversions),
        rolled_back=len(conversions) - len(switches),
        different_answers=len(texts),
        switch_ms_median=round(statistics.median(switches) * 1e3, 2),
        switch_ms_p99=round(p99 * 1e3, 2),
        switch_ms_max=round(switches[-1] * 1e3, 2),
        drain_s_median=round(statistics.median(drains), 3),
        drain_s_max=round(drains[-1], 3),
        grown_kib_per_cycle=round((last["bytes"] - first["bytes"]) / (0.9 * cycles) / 1024, 2),
        grown_descriptors=last["descriptors"] - first["descriptors"],
        ratio=round(p99 / PROMISED_S, 4),
    )


if __name__ == "__main__":
    main()
