"""A daemon with real ranks in a storm: a seed says what happens, and it is judged by what is left.

Clients ask all the time, and some of them leave. Meanwhile workers are split and merged, ranks are
killed, prefixes replicated by demand and reclaimed by hand. Then all becomes quiet, and everything
must be as if nothing had been, which is what ``assert_at_rest`` looks at.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import Client, Daemon, children

from vertumnusd import admin
from vertumnusd.admin_address import admin_socket_path
from vertumnusd.messages import HASH_BYTES
from vertumnusd.node.hashing import chain

BLOCK = 16
SECTIONS: dict[str, dict[str, Any]] = {
    "cluster": {"ranks": 4, "cp_degrees": [1, 2, 4], "composition": "2CP2"},
    "cache": {"block_tokens": BLOCK, "kv_tokens": 3_072, "decode_kv_tokens": 32_768},
    "rank": {"max_restarts": 10_000, "step_s": 0.02},
    "adaptation": {"automatic": False, "patience_s": 0.2},
    "replication": {
        "scan_s": 0.3,
        "inter_missed_s": 0.001,
        "intra_accesses": 1.0,
        "reclaim_accesses": 0.9,
        "reclaim_above": 0.2,
        "bytes_per_s": 2e6,  # slow enough to be met on the way
    },
}
MERGES = (["CP1[0]", "CP1[1]"], ["CP1[2]", "CP1[3]"], ["CP2[0-1]", "CP2[2-3]"])
CLIENTS, TOKENS = 4, 6
STORM_S = 3.0
REFUSED_S = 0.1  # before the next try
LINGER_S = 2.0  # until the last connections are closed on both sides
QUIET_S = 60.0  # until all ranks must be back and every request over


def prompts() -> list[str]:
    """Of several lengths; those that begin alike share up to a thousand tokens."""
    dice = random.Random(9)
    roots = ["".join(dice.choices("etaoin shrdlu", k=1_100)) for _ in range(3)]
    lengths = (40, 200, 700, 1_100)
    return [f"{dice.choice(roots)[: dice.choice(lengths)]} {n}" for n in range(24)]


@dataclass(slots=True)
class Storm:
    """One node, what it should answer, and what it had open when all was quiet."""

    node: Daemon
    golden: dict[str, str] = field(default_factory=dict)
    chains: dict[str, bytes] = field(default_factory=dict)
    processes: int = 0
    descriptors: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for prompt in prompts():
            self.golden[prompt] = complete(self.node.port, prompt)
            self.chains[prompt] = chain(tokenized(self.node.port, prompt), BLOCK, b"")
        self.processes = len(children(self.node.process.pid))
        time.sleep(LINGER_S)
        self.descriptors = self._descriptors()

    def play(self, seed: int) -> None:
        """Raises AssertionError for whatever is not as it must be."""
        script = _Script(self, random.Random(seed))
        script.run()
        self.happened.update(script.happened)
        self.assert_at_rest()

    # --- afterwards

    def assert_at_rest(self) -> None:
        with Client(self.node.port) as client:
            view = until_quiet(lambda: client.get("/v1/cluster"))
        assert sorted(r for w in view["workers"] for r in w["ranks"]) == [0, 1, 2, 3]
        idle = {"queue_s": 0, "waiting": 0, "fetching": 0, "running": []}
        for worker in view["workers"]:
            assert {name: worker[name] for name in idle} == idle, worker
        for rank in self.order("audit")["ranks"]:
            assert (rank["answered"], rank["wrong_blocks"], rank["unknown_blocks"]) == (True, 0, 0)
        for prompt in list(self.golden)[::5]:
            assert complete(self.node.port, prompt) == self.golden[prompt]
        assert len(children(self.node.process.pid)) == self.processes
        eventually(lambda: self._descriptors() <= self.descriptors)
        assert self._descriptors() - self.descriptors == Counter()

    def order(self, what: str, **content: object) -> dict[str, Any]:
        operator = admin.Daemon.by_socket(admin_socket_path("", self.node.port))
        return operator.ask("POST", f"/v1/admin/{what}", content)

    def _descriptors(self) -> Counter[str]:
        """Of the daemon, by kind; sockets of clients and files of memory are among them."""
        found = Counter[str]()
        for path in Path(f"/proc/{self.node.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                found[os.readlink(path).partition("[")[0]] += 1
        return found


class _Script:
    """One seed's storm."""

    def __init__(self, storm: Storm, dice: random.Random) -> None:
        self._storm = storm
        self._dice = dice
        self._over = threading.Event()
        self.happened: Counter[str] = Counter()

    def run(self) -> None:
        with ThreadPoolExecutor(CLIENTS + 8) as pool:
            seeds = [self._dice.random() for _ in range(CLIENTS)]
            clients = [pool.submit(self._ask_on, random.Random(seed)) for seed in seeds]
            try:
                self._act(pool)
            finally:
                self._over.set()
            for client in clients:
                client.result(QUIET_S)

    def _act(self, pool: ThreadPoolExecutor) -> None:
        actions = {"split": 4, "merge": 4, "leave": 3, "reclaim": 3, "kill": 0.3}
        end, orders = time.monotonic() + STORM_S, list[Future[None]]()
        while time.monotonic() < end:
            (action,) = self._dice.choices(list(actions), list(actions.values()))
            self.happened[action] += 1
            match action:
                case "kill":
                    actions["kill"] = 0  # the ranks' return takes longer than a storm
                    self._kill()
                case "leave":
                    self._leave()
                case "reclaim":
                    self._reclaim()
                case _:
                    orders.append(pool.submit(self._convert, action, self._dice.random()))
            time.sleep(self._dice.random() * 0.2)
        for order in orders:
            order.result(QUIET_S)

    def _ask_on(self, dice: random.Random) -> None:
        """Ask again and again. Only where a rank was killed may one be refused, and is told."""
        asked = list(self._storm.golden)
        while not self._over.is_set():
            prompt = dice.choice(asked)
            try:
                text = complete(self._storm.node.port, prompt)
            except Refused:
                if not self.happened["kill"]:
                    raise
                self.happened["refused"] += 1
                time.sleep(REFUSED_S)
            else:
                assert text == self._storm.golden[prompt], prompt
                self.happened["answered"] += 1

    def _convert(self, kind: str, chance: float) -> None:
        with Client(self._storm.node.port) as client:
            workers = {w["name"] for w in client.get("/v1/cluster")["workers"]}
        splits = [[name] for name in sorted(workers) if not name.startswith("CP1[")]
        choices = splits if kind == "split" else [m for m in MERGES if workers.issuperset(m)]
        if choices:
            with suppress(admin.AdminError):  # they take part in another one by now
                named = choices[int(chance * len(choices))]
                ended = self._storm.order(kind, workers=named)["converted"]
                self.happened.update(each["outcome"] for each in ended)

    def _reclaim(self) -> None:
        names = self._storm.chains[self._dice.choice(list(self._storm.golden))]
        at = self._dice.randrange(0, len(names), HASH_BYTES)
        with suppress(admin.AdminError):  # no home holds it
            name = names[at : at + HASH_BYTES].hex()
            found = self._storm.order("reclaim", prefix=name)["reclaimed"]
            self.happened["reclaimed"] += sum(each["blocks"] for each in found)

    def _leave(self) -> None:
        """Ask, and close the connection some time later."""
        prompt = self._dice.choice(list(self._storm.golden))
        body = json.dumps({"prompt": prompt, "max_tokens": 100})
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self._storm.node.port)) as leaver:
            leaver.sendall((head + body).encode())
            time.sleep(self._dice.random() * 0.1)

    def _kill(self) -> None:
        everyone = children(self._storm.node.process.pid)
        ranks = [pid for pid in everyone if b"host_helper" not in command_line(pid)]
        if ranks:
            os.kill(self._dice.choice(ranks), signal.SIGKILL)


class Refused(Exception):
    def __init__(self, status: int, answer: bytes) -> None:
        super().__init__(f"{status}: {answer!r}")


def complete(port: int, prompt: str) -> str:
    """A greedy answer. Raises Refused."""
    body = json.dumps({"prompt": prompt, "max_tokens": TOKENS, "temperature": 0}).encode()
    with Client(port) as client:
        status, answer = client.request("POST", "/v1/completions", body)
    if status != 200:
        raise Refused(status, answer)
    return str(json.loads(answer)["choices"][0]["text"])


def tokenized(port: int, prompt: str) -> list[int]:
    with Client(port) as client:
        body = json.dumps({"prompt": prompt}).encode()
        return list(json.loads(client.request("POST", "/tokenize", body)[1])["tokens"])


def command_line(pid: int) -> bytes:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b"host_helper"  # nothing to kill any more


def until_quiet(look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The cluster once every rank serves and nothing goes on in it, nor is held for anything."""
    deadline = time.monotonic() + QUIET_S
    while time.monotonic() < deadline:
        view = look()
        under_way = view["requests"] or view["operations"] or view["transfers"]
        serve = all(worker["state"] == "serving" for worker in view["workers"])
        pinned = any(h["pinned_blocks"] or h["reserved_blocks"] for h in view["homes"])
        free = all(p["up"] and p["free_blocks"] == p["kv_blocks"] for p in view["decode"])
        if serve and free and not (under_way or pinned):
            return view
        time.sleep(0.05)
    raise AssertionError(f"never quiet: {view}")


def eventually(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 5
    while not true() and time.monotonic() < deadline:
        time.sleep(0.05)
    return true()
