"""Splits and merges of real CPU ranks: how long they take, and whether anything grows.

Four ranks cycle 1CP4 → 2CP2 → 4CP1 → 2CP2 → 1CP4 under a trickle of short and middling requests. A
switch is the time from the end of a drain until the new workers serve; it should take no more than
50 ms. A drain should take no longer than what is running at its beginning, so each is held against
the time from the order until the last request that its workers ran had its first token, which the
client has seen: ``drain_excess_ms`` is what drains took beyond it. A paused request may hold a
drain up for as long as the patience. Memory of the daemon and of its ranks is compared after a
first tenth of the cycles and at the end.

The ratio is the P99 of the switches over 50 ms: below 1 is as promised.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import DOCUMENT, Client, Daemon, children, daemon, result, say

from vertumnusd import admin
from vertumnusd.admin_address import admin_socket_path

PROMISED_S = 0.050
TRICKLES, PAUSE_S = 2, 0.3
ROUND = (
    ("split", ["CP4[0-3]"]),
    ("split", ["CP2[0-1]", "CP2[2-3]"]),
    ("merge", ["CP1[0]", "CP1[1]", "CP1[2]", "CP1[3]"]),
    ("merge", ["CP2[0-1]", "CP2[2-3]"]),
)
CLUSTER = {"ranks": 4, "cp_degrees": [1, 2, 4], "composition": "1CP4"}
PROMPT = "A short question, asked again and again: what is the time?"
LONGER = (400, 1_600)  # characters


@dataclass(frozen=True, slots=True)
class Served:
    """A request of the trickle: from its sending to its first token, and where that was."""

    began: float
    first_token: float
    worker: str


@dataclass(frozen=True, slots=True)
class Conversion:
    """What became of an order that was given at ``ordered``."""

    ordered: float
    facts: dict[str, Any]

    def excess_s(self, served: Sequence[Served]) -> float:
        """What the drain took beyond what its workers were running."""
        ends = [
            request.first_token - self.ordered
            for request in served
            if request.worker in self.facts["before"] and request.began < self.ordered
        ]
        left_s = max([0.0, *ends])
        return float(self.facts["drain_s"]) - left_s


def own_bytes(pid: int) -> int:
    """Resident and not shared: pools and weights are, and have their size from the start."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.partition("RssAnon:")[2].split()[0])


def held(node: Daemon) -> dict[str, int]:
    """Memory and descriptors of the daemon and its ranks."""
    pids = [node.process.pid, *children(node.process.pid)]
    return {
        "bytes": sum(map(own_bytes, pids)),
        "descriptors": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
    }


def cycle(node: Daemon, cycles: int) -> tuple[list[Conversion], dict[str, int]]:
    """All conversions, and what was held after the first tenth of the cycles."""
    operator = admin.Daemon.by_socket(admin_socket_path("", node.port))
    conversions: list[Conversion] = []
    first: dict[str, int] = {}
    dice = random.Random(9)
    for n in range(cycles):
        time.sleep(dice.random() * PAUSE_S)  # so that orders meet requests anywhere in their lives
        kind, workers = ROUND[n % len(ROUND)]
        ordered = time.perf_counter()
        answer = operator.ask("POST", f"/v1/admin/{kind}", {"workers": workers})
        conversions += [Conversion(ordered, facts) for facts in answer["converted"]]
        if n == cycles // 10:
            first = held(node)
        if n % 50 == 49:
            say(f"{n + 1} of {cycles} cycles")
    return conversions, first


def trickle(
    port: int, over: threading.Event, texts: set[str], served: list[Served], seed: int
) -> None:
    """The short question now and then: all answers to it should be the same."""
    dice = random.Random(seed)
    with Client(port) as client:
        while not over.is_set():
            began = time.perf_counter()
            length = dice.choice((0, *LONGER))
            answer = client.complete(
                f"{seed} {len(served)} {DOCUMENT[:length]}" if length else PROMPT, 2
            )
            if not length:
                texts.add(answer.text)
            worker = answer.facts["worker"]
            served.append(Served(began, began + answer.first_token_s, worker))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=500)
    cycles = parser.parse_args().cycles
    over, texts, served = threading.Event(), set[str](), list[Served]()
    with daemon(cluster=CLUSTER, adaptation={"automatic": False}) as node:
        trickles = [
            threading.Thread(target=trickle, args=(node.port, over, texts, served, seed))
            for seed in range(TRICKLES)
        ]
        for each in trickles:
            each.start()
        conversions, first = cycle(node, cycles)
        over.set()
        for each in trickles:
            each.join()
        last = held(node)
    exposed = [c.facts for c in conversions if c.facts["outcome"] == "exposed"]
    switches = sorted(facts["switch_s"] for facts in exposed)
    drains = sorted(c.facts["drain_s"] for c in conversions)
    excesses = sorted(c.excess_s(served) for c in conversions)
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
        drain_excess_ms_median=round(statistics.median(excesses) * 1e3, 1),
        drain_excess_ms_p99=round(excesses[int(0.99 * (len(excesses) - 1))] * 1e3, 1),
        drain_excess_ms_max=round(excesses[-1] * 1e3, 1),
        drains_with_work=sum(s > PROMISED_S for s in drains),
        grown_kib_per_cycle=round((last["bytes"] - first["bytes"]) / (0.9 * cycles) / 1024, 2),
        grown_descriptors=last["descriptors"] - first["descriptors"],
        ratio=round(p99 / PROMISED_S, 4),
    )


if __name__ == "__main__":
    main()
