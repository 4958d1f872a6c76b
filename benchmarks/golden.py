"""Answers while the cluster adapts: real CPU ranks, workers split and merged every second.

Greedy answers are taken from the quiet cluster first. Then the same requests come several at a time
while somebody splits and merges at random, prefixes are replicated where they are used and
reclaimed where they are not, or by hand, and every answer is compared. Afterwards pins,
reservations, transfers, descriptors and processes must be what they were, and the prefix trie what
the ranks hold.

The ratio is the share of answers that differ: 0 is as promised.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from harness import DOCUMENT, Client, Daemon, ask, children, daemon, result, say

from vertumnusd import admin
from vertumnusd.admin_address import admin_socket_path
from vertumnusd.messages import HASH_BYTES
from vertumnusd.node.hashing import chain

CLUSTER = {"ranks": 4, "cp_degrees": [1, 2, 4], "composition": "2CP2"}
REPLICATION = {  # only the longest prompts count, and there are few: a little is much
    "scan_s": 1.0,
    "decay": 0.95,
    "inter_missed_s": 0.1,
    "intra_accesses": 0.2,
    "reclaim_accesses": 0.1,
    "reclaim_above": 0.2,
}
PAIRS = (("CP1[0]", "CP1[1]"), ("CP1[2]", "CP1[3]"), ("CP2[0-1]", "CP2[2-3]"))
BLOCK = 16
CLIENTS, TOKENS, WARM_UPS = 6, 6, 20
LINGER_S = 3.0  # until the last connections are closed on both sides


def prompts(count: int, dice: random.Random) -> list[str]:
    """Of several lengths; many share a beginning."""
    lengths = dice.choices((80, 400, 1_600, 4_000), weights=(4, 4, 2, 1), k=count)
    return [DOCUMENT[dice.randrange(8) * 100 :][:n] + f" {dice.randrange(50)}" for n in lengths]


def convert(node: Daemon, every_s: float, over: threading.Event, outcomes: list[str]) -> None:
    """Split or merge something that can be, and reclaim a prefix, again and again."""
    operator = admin.Daemon.by_socket(admin_socket_path("", node.port))
    dice = random.Random(5)
    while not over.wait(every_s):
        outcomes += convert_once(operator, dice)
        reclaim_once(node, operator, dice)


def reclaim_once(node: Daemon, operator: admin.Daemon, dice: random.Random) -> None:
    """What lies behind some block of some prompt, at all homes that have it and can give it up."""
    (prompt,) = prompts(1, dice)
    with Client(node.port) as client:
        answer = client.request("POST", "/tokenize", json.dumps({"prompt": prompt}).encode())[1]
    names = chain(json.loads(answer)["tokens"], BLOCK, b"")
    at = dice.randrange(0, len(names), HASH_BYTES)
    with suppress(admin.AdminError):  # no home has it
        operator.ask("POST", "/v1/admin/reclaim", {"prefix": names[at : at + HASH_BYTES].hex()})


def convert_once(operator: admin.Daemon, dice: random.Random) -> list[str]:
    names = {w["name"] for w in operator.ask("GET", "/v1/cluster")["workers"]}
    orders = [("split", [name]) for name in sorted(names) if not name.startswith("CP1[")]
    orders += [("merge", list(pair)) for pair in PAIRS if names.issuperset(pair)]
    kind, workers = dice.choice(orders)
    answer = operator.ask("POST", f"/v1/admin/{kind}", {"workers": workers})
    return [each["outcome"] for each in answer["converted"]]


def warm_up(node: Daemon, outcomes: list[str]) -> None:
    """A rank opens some descriptors when it first needs them."""
    operator = admin.Daemon.by_socket(admin_socket_path("", node.port))
    dice = random.Random(4)
    with Client(node.port) as client:
        for n in range(WARM_UPS):
            outcomes += convert_once(operator, dice)
            client.complete(f"{n}. {DOCUMENT[:500]}", 2)


def held(node: Daemon) -> dict[str, int]:
    """What must be as before, once the node is idle."""
    with Client(node.port) as client:
        while (view := client.get("/v1/cluster"))["requests"] or view["transfers"]:
            time.sleep(0.05)
    time.sleep(LINGER_S)
    pid = node.process.pid
    ranks = admin.Daemon.by_socket(admin_socket_path("", node.port)).ask("POST", "/v1/admin/audit")
    return {
        "wrong or unknown blocks": sum(
            rank["wrong_blocks"] + rank["unknown_blocks"] for rank in ranks["ranks"]
        ),
        "blocks": sum(home["pinned_blocks"] + home["reserved_blocks"] for home in view["homes"]),
        "decode blocks": sum(p["kv_blocks"] - p["free_blocks"] for p in view["decode"]),
        "processes": len(children(pid)),
        "descriptors": sum(len(os.listdir(f"/proc/{p}/fd")) for p in (pid, *children(pid))),
    }


def counted(node: Daemon) -> dict[str, int]:
    """Copies of prefixes, by kind, and reclaimed tokens."""
    with Client(node.port) as client:
        lines = client.request("GET", "/metrics")[1].decode().splitlines()
    names = ("vertumnus_replications_total", "vertumnus_reclaimed_tokens_total")
    pairs = (line.removeprefix("vertumnus_").split() for line in lines if line.startswith(names))
    return {name.replace('"', ""): int(float(value)) for name, value in pairs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between conversions")
    arguments = parser.parse_args()
    asked = prompts(arguments.requests, random.Random(3))
    outcomes: list[str] = []
    by_hand = {"automatic": False}
    with daemon(cluster=CLUSTER, adaptation=by_hand, replication=REPLICATION) as node:
        with Client(node.port) as client:
            golden = {
                prompt: client.complete(prompt, TOKENS).text for prompt in dict.fromkeys(asked)
            }
        say(f"{len(golden)} answers of the quiet cluster")
        over = threading.Event()
        warm_up(node, outcomes)
        before = held(node)
        hand = threading.Thread(target=convert, args=(node, arguments.every, over, outcomes))
        hand.start()
        with ThreadPoolExecutor(CLIENTS) as pool:
            answers = list(pool.map(lambda prompt: ask(node.port, prompt, TOKENS), asked))
        over.set()
        hand.join()
        after, copies = held(node), counted(node)
    wrong = sum(a.text != golden[p] for a, p in zip(answers, asked, strict=True))
    result(
        requests=len(asked),
        conversions=len(outcomes),
        rolled_back=outcomes.count("rolled back"),
        copies=copies,
        degrees=sorted({answer.facts["degree"] for answer in answers}),
        hit_rate=round(
            sum(a.cached_tokens for a in answers) / sum(a.input_tokens for a in answers), 3
        ),
        grown={name: after[name] - before[name] for name in before},
        ratio=wrong / len(asked),
    )


if __name__ == "__main__":
    main()
