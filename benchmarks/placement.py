"""How fast the controller places requests on 64 workers, beside Dynamo's SelectionService.

A Mooncake trace as the argument, else a generated load with the statistics of the conversation
trace. Timed is one ``Submit`` to the controller, given the block hashes: admission, the longest
prefix at every home, J over all workers, the reservation, and, where the worker is free, the
dispatch that follows, with the statistics of Algorithm 1. Between submissions, and not timed, the
oldest requests finish, prefixes are fetched, and ranks report their blocks, so that caches and
queues are those of a busy cluster.

The peer is ``ai-dynamo-runtime`` in a process of its own, by ``--peer PYTHON`` with an interpreter
that has it: ``select`` among 64 workers, given the same hashes, which neither reserves nor counts
anything, and ``select_and_reserve``, which does as much as a placement but for the statistics, with
the oldest reservation freed in between and not timed. Its index has from the beginning what our
workers held at the end. The time of a call is its median over the rounds, which take turns.
Targets: 10,000 placements a second, P50 80 µs, P99 300 µs, and 2.5 times the selections a second of
the peer's ``select``; this is the ratio.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from harness import median, result, say
from peer import arguments_of, peer

from vertumnusd.control.controller import Controller, Settings
from vertumnusd.control.prefix_trie import ROOT
from vertumnusd.control.settings import FetchSettings, ReplicationSettings
from vertumnusd.layout import owned_blocks, rotation
from vertumnusd.messages import (
    HASH_BYTES,
    Adopted,
    AdoptWorker,
    BlocksChanged,
    ControlCommand,
    ControlEvent,
    Dispatch,
    Done,
    HandedOff,
    PrefillDone,
    RankUp,
    Replicate,
    Replicated,
    Seated,
    Submit,
)
from vertumnusd.simulate.generate import Phase, generate
from vertumnusd.simulate.names import BlockNames
from vertumnusd.simulate.profiles import profile
from vertumnusd.simulate.traces import BLOCK_TOKENS, TraceRow, read_trace

WORKERS = 64
ROUNDS = 5
UNDER_WAY = 96  # requests at once: one and a half for each worker
RANKS, HOME_RANKS = 160, 2
SETTINGS = Settings(
    cp_degrees=(2, 4),
    ranks=RANKS,
    home_ranks=HOME_RANKS,
    composition="16CP4/48CP2",
    policy="ours",
    block_tokens=BLOCK_TOKENS,
    kv_blocks=4000,
    decode_ranks=1,
    decode_kv_blocks=1,
    max_queue_tokens=10**9,
    max_queue_s=1e9,
    unplaced_wait_s=60.0,
    replication=ReplicationSettings(enabled=True),
    fetch=FetchSettings(token_s=4e-6),
)

PEER = """
import asyncio, http.server, json, sys, threading, time
from collections import deque
from dynamo._core import SelectionService
index, *requests = [json.loads(line) for line in open(sys.argv[1])]
class Index(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"model:default": index}).encode())
    def log_message(self, *_):
        pass
async def main():
    service = SelectionService()
    for worker in range(64):
        await service.upsert_worker({
            "worker_id": worker, "model_name": "model", "endpoint": "tcp://127.0.0.1:1",
            "kv_events_endpoint": f"tcp://127.0.0.1:{21000 + worker}", "block_size": 512,
            "data_parallel_size": 1, "max_num_batched_tokens": 8192, "total_kv_blocks": 4000,
        })
    while service.ready()["schedulable_workers"] < 64:
        await asyncio.sleep(0.1)
    server = http.server.HTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    peer = f"http://127.0.0.1:{server.server_port}"
    assert await service.recover_indexer_from_peers([peer])
    print("ready", flush=True)
    for line in sys.stdin:
        reserve, times, reserved, found = line == "reserve\\n", [], deque(), 0
        call = service.select_and_reserve if reserve else service.select
        for request in requests:
            if len(reserved) == 96:
                await service.free_reservation(reserved.popleft())
            before = time.perf_counter()
            answer = await call(request)
            times.append(time.perf_counter() - before)
            found += answer["overlap"]["longest_matched"]
            if reserve:
                reserved.append(request["selection_id"])
        for selection in reserved:
            await service.free_reservation(selection)
        assert found > 0
        print(json.dumps(times), flush=True)
    service.shutdown()
asyncio.run(main())
"""


class Cluster:
    """What the controller commands, done at once or when there is too much under way."""

    def __init__(self) -> None:
        self.controller = Controller(SETTINGS, profile("q3").predicted)
        self._submits: dict[str, Submit] = {}
        self._dispatched: deque[Dispatch] = deque()
        self.stored: list[tuple[int, bytes]] = []  # base rank of a worker, chain
        self._held: list[set[bytes]] = [set() for _ in range(RANKS)]
        self._versions = [0] * RANKS
        commands = self._step(Seated(1))
        for rank in range(RANKS):
            commands += self._step(RankUp(rank, "prefill", 1))
        for command in commands:
            assert isinstance(command, AdoptWorker)
            for rank in range(command.base, command.base + command.degree):
                self._step(Adopted(rank, 1, command.epoch, command.degree))

    def place(self, submit: Submit) -> float:
        """Seconds that it took."""
        while len(self._submits) >= UNDER_WAY:
            self._finish_oldest()
        self._submits[submit.request] = submit
        before = time.perf_counter()
        commands = self.controller.step(0.0, submit)
        elapsed_s = time.perf_counter() - before
        self._obey(commands)
        return elapsed_s

    def _finish_oldest(self) -> None:
        dispatch = self._dispatched.popleft()
        submit = self._submits.pop(dispatch.request)
        self._step(PrefillDone(submit.request, 0, 0, dispatch.predicted_s))
        self._report(dispatch.home_base, submit.chain)
        self.stored.append((dispatch.base, submit.chain))
        self._step(HandedOff(submit.request, 0))
        self._step(Done(submit.request, 0))

    def _report(self, home: int, chain: bytes) -> None:
        blocks = [chain[at : at + HASH_BYTES] for at in range(0, len(chain), HASH_BYTES)]
        parents = [ROOT, *blocks]
        turn = rotation(chain, HOME_RANKS)
        for rank in range(home, home + HOME_RANKS):
            owned = owned_blocks(rank, len(blocks), home, turn, HOME_RANKS)
            stored = [b for b in owned if blocks[b] not in self._held[rank]]
            self._held[rank].update([blocks[b] for b in stored])
            self._versions[rank] += 1
            pairs = b"".join([parents[b] + blocks[b] for b in stored])
            self._step(BlocksChanged(rank, self._versions[rank], pairs, b"", 0, 0, 0))

    def _step(self, event: ControlEvent) -> list[ControlCommand]:
        commands = self.controller.step(0.0, event)
        self._obey(commands)
        return commands

    def _obey(self, commands: list[ControlCommand]) -> None:
        """Prefixes are fetched at once."""
        self._dispatched.extend(c for c in commands if isinstance(c, Dispatch))
        for command in commands:
            if isinstance(command, Replicate):
                self._report(command.destination_home, command.chain)
                self._step(Replicated(command.transfer))


def main() -> int:
    arguments = arguments_of(__doc__)
    names = BlockNames()
    submits = [
        Submit(str(number), 0, row.input_tokens, b"".join(names.chain(row.blocks)), 1)
        for number, row in enumerate(_rows(arguments.trace))
    ]
    say(f"{len(submits)} requests, {WORKERS} workers; load average {os.getloadavg()[0]:.1f}")
    rounds: dict[str, list[list[float]]] = {"placement": [], "select": [], "reserve": []}
    first = Cluster()
    for submit in submits:
        first.place(submit)
    with peer(arguments.peer, PEER, [_index(first.stored), *map(_for_peer, submits)]) as ask:
        for _ in range(ROUNDS):
            cluster = Cluster()
            rounds["placement"].append([cluster.place(submit) for submit in submits])
            if ask is not None:
                rounds["select"].append(ask("select"))
                rounds["reserve"].append(ask("reserve"))
    figures: dict[str, float | None] = {
        f"{kind}_{name}": value
        for kind, times in rounds.items()
        if times
        for name, value in _figures(kind, times).items()
    }
    ratios = {
        kind: round(figures["placement_per_s"] / figures[f"{kind}_per_s"], 2)
        for kind in ("reserve", "select")
        if f"{kind}_per_s" in figures
    }
    figures["reserve_ratio"] = ratios.get("reserve")
    result(requests=len(submits), workers=WORKERS, **figures, ratio=ratios.get("select"))
    return 0


def _rows(trace: Path | None) -> list[TraceRow]:
    if trace is not None:
        return read_trace(trace)
    return generate([Phase(130.0, 90.0, "conversation")], seed=1)


def _figures(kind: str, rounds: list[list[float]]) -> dict[str, float]:
    """Of each call the median over the rounds."""
    times = sorted(median(times) for times in zip(*rounds, strict=True))
    figures = {
        "per_s": round(len(times) / sum(times)),
        "p50_us": round(1e6 * times[len(times) // 2], 1),
        "p99_us": round(1e6 * times[len(times) * 99 // 100], 1),
    }
    say(f"{kind}: " + ", ".join(f"{name} {value}" for name, value in figures.items()))
    return figures


def _index(stored: list[tuple[int, bytes]]) -> dict[str, Any]:
    """What the peer's workers hold: the chains that ours computed, each at its worker."""
    number = {base: n for n, base in enumerate(sorted({base for base, _ in stored}))}
    held: set[tuple[int, int]] = set()
    events: list[dict[str, Any]] = []
    for base, chain in stored:
        hashes = _hashes(chain)
        there = sum((base, block) in held for block in hashes)
        fresh = hashes[there:]
        held.update((base, block) for block in fresh)
        if fresh:
            parent = hashes[there - 1] if there else None
            blocks = [{"block_hash": block, "tokens_hash": block} for block in fresh]
            data = {"stored": {"parent_hash": parent, "blocks": blocks}}
            event = {"event_id": len(events), "data": data, "dp_rank": 0}
            events.append({"worker_id": number[base], "storage_tier": "device", "event": event})
    return {"block_size": BLOCK_TOKENS, "events": events}


def _for_peer(submit: Submit) -> dict[str, Any]:
    hashes = _hashes(submit.chain) or [int(submit.request)]
    return {
        "model_name": "model",
        "selection_id": submit.request,
        "block_hashes": hashes,
        "sequence_hashes": hashes,
        "isl_tokens": submit.input_tokens,
    }


def _hashes(chain: bytes) -> list[int]:
    return [low >> 1 for low in memoryview(chain).cast("Q").tolist()[::2]]  # signed ones


if __name__ == "__main__":
    sys.exit(main())
