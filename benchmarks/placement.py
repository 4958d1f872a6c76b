"""How fast the controller places requests on 64 workers, beside Dynamo's SelectionService.

A Mooncake trace as the argument, else a generated load with the statistics of the conversation
trace. Timed is one ``Submit`` to the controller, given the block hashes: admission, the longest
prefix at every home, J over all workers, the reservation, and, where the worker is free, the
dispatch that follows, with the statistics of Algorithm 1. Between submissions, and not timed, the
oldest requests finish and ranks report their blocks, so that caches and queues are those of a
busy cluster.

The peer is ``ai-dynamo-runtime`` in a process of its own, by ``--peer PYTHON`` with an interpreter
that has it: ``select`` among 64 workers, given the same hashes. Its index stays empty, which spares
it the matches. The time of a call is its median over the rounds, which take turns. Targets: 10,000
placements a second, P50 80 µs, P99 300 µs, and 2.5 times the selections a second of the peer; this
is the ratio.
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
from vertumnusd.control.settings import ReplicationSettings
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
)

PEER = """
import asyncio, json, sys, time
from dynamo._core import SelectionService
requests = [json.loads(line) for line in open(sys.argv[1])]
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
    print("ready", flush=True)
    for _ in sys.stdin:
        times = []
        for request in requests:
            before = time.perf_counter()
            await service.select(request)
            times.append(time.perf_counter() - before)
        print(json.dumps(times), flush=True)
    service.shutdown()
asyncio.run(main())
"""


class Cluster:
    """What the controller commands, done at once or when there is too much under way."""

    def __init__(self, names: BlockNames) -> None:
        self.controller = Controller(SETTINGS, profile("q3").predicted)
        self._names = names
        self._submits: dict[str, Submit] = {}
        self._dispatched: deque[Dispatch] = deque()
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
        self._dispatched.extend(c for c in commands if isinstance(c, Dispatch))
        return elapsed_s

    def _finish_oldest(self) -> None:
        dispatch = self._dispatched.popleft()
        submit = self._submits.pop(dispatch.request)
        self._step(PrefillDone(submit.request, 0, 0, dispatch.predicted_s))
        self._report(dispatch.home_base, submit.chain)
        self._step(HandedOff(submit.request, 0))
        self._step(Done(submit.request, 0))

    def _report(self, home: int, chain: bytes) -> None:
        blocks = [chain[at : at + HASH_BYTES] for at in range(0, len(chain), HASH_BYTES)]
        turn = rotation(chain, HOME_RANKS)
        for rank in range(home, home + HOME_RANKS):
            owned = (blocks[b] for b in owned_blocks(rank, len(blocks), home, turn, HOME_RANKS))
            stored = [block for block in owned if block not in self._held[rank]]
            self._held[rank].update(stored)
            self._versions[rank] += 1
            pairs = b"".join(self._names.edges[block] for block in stored)
            self._step(BlocksChanged(rank, self._versions[rank], pairs, b"", 0, 0, 0))

    def _step(self, event: ControlEvent) -> list[ControlCommand]:
        commands = self.controller.step(0.0, event)
        self._dispatched.extend(c for c in commands if isinstance(c, Dispatch))
        return commands


def main() -> int:
    arguments = arguments_of(__doc__)
    names = BlockNames()
    submits = [
        Submit(str(number), 0, row.input_tokens, b"".join(names.chain(row.blocks)), 1)
        for number, row in enumerate(_rows(arguments.trace))
    ]
    say(f"{len(submits)} requests, {WORKERS} workers; load average {os.getloadavg()[0]:.1f}")
    rounds: dict[str, list[list[float]]] = {"placement": [], "select": []}
    with peer(arguments.peer, PEER, map(_for_peer, submits)) as ask:
        for _ in range(ROUNDS):
            cluster = Cluster(names)
            rounds["placement"].append([cluster.place(submit) for submit in submits])
            if ask is not None:
                rounds["select"].append(ask("select"))
    figures = {
        f"{kind}_{name}": value
        for kind, times in rounds.items()
        if times
        for name, value in _figures(kind, times).items()
    }
    peer_per_s = figures.get("select_per_s")
    ratio = round(figures["placement_per_s"] / peer_per_s, 2) if peer_per_s else None
    result(requests=len(submits), workers=WORKERS, **figures, ratio=ratio)
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


def _for_peer(submit: Submit) -> dict[str, Any]:
    lows = memoryview(submit.chain).cast("Q").tolist()[::2] or [int(submit.request)]
    hashes = [low >> 1 for low in lows]  # signed ones
    return {
        "model_name": "model",
        "selection_id": submit.request,
        "block_hashes": hashes,
        "sequence_hashes": hashes,
        "isl_tokens": submit.input_tokens,
    }


if __name__ == "__main__":
    sys.exit(main())
