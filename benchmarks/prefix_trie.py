"""The prefix trie against the RadixTree of ``ai-dynamo-runtime``.

A Mooncake trace as the argument (else a generated load with the statistics of the conversation
trace) is replayed over 8 and over 64 workers, in blocks of 512 and of 64 tokens: each request looks
up its longest prefix at every worker, and then its worker reports the blocks that it lacked. A
request goes to the worker that has its conversation, or else to the next in turn. Both tries do the
same, in the same run and in turn, the peer in a process of its own, by ``--peer PYTHON`` with an
interpreter that has it.

Each call's time is its median over the rounds; CPU seconds are those of a whole replay, with all
threads of the peer. Both lookups return an object of their own; ``as dict`` are those that make a
length for each worker of it. Targets: twice the peer's lookups/s with a P99 no worse, and twice its
stored blocks/s. The ratio is the smallest of these.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from harness import median, result, say
from peer import arguments_of, peer

from vertumnusd.control.prefix_trie import ROOT, PrefixTrie
from vertumnusd.messages import HASH_BYTES, BlocksChanged
from vertumnusd.simulate.generate import Phase, generate
from vertumnusd.simulate.traces import TraceRow, read_trace

ROUNDS = 5
WORKERS = (8, 64)
SPLITS = {512: 1, 64: 8}  # by the tokens of a block: how many one of the trace makes
SHARED_BLOCKS = 1  # a prefix no longer than the system prompt makes no conversation

PEER = """
import json, sys, time
from dynamo._core import RadixTree
requests = [json.loads(line) for line in open(sys.argv[1])]
chains = [request["chain"] for request in requests]
workers = [request["worker"] for request in requests]
events = [json.dumps(r["event"]).encode() if r["event"] else None for r in requests]
clock = time.perf_counter
print("ready", flush=True)
for line in sys.stdin:
    as_dict, tree, finds, stores = line == "as dict\\n", RadixTree(), [], []
    cpu = time.process_time()
    for chain, worker, event in zip(chains, workers, events):
        before = clock()
        found = tree.find_matches(chain)
        if as_dict:
            found = found.scores
        finds.append(clock() - before)
        if event:
            before = clock()
            tree.apply_event(worker, event)
            stores.append(clock() - before)
    print(json.dumps([finds, stores, time.process_time() - cpu]), flush=True)
"""


class Request(NamedTuple):
    """One request of the replay: its chain, and what its worker reports afterwards."""

    chain: bytes
    worker: int
    report: BlocksChanged | None


class Times(NamedTuple):
    """Seconds of each lookup and of each store of a replay, and CPU seconds of all of it."""

    finds: list[float]
    stores: list[float]
    cpu: float


class Figures(NamedTuple):
    lookups_per_s: float
    p50_us: float
    p99_us: float
    stored_per_s: float
    cpu_s: float


def main() -> int:
    arguments = arguments_of(__doc__)
    rows = _rows(arguments.trace)
    say(f"{len(rows)} requests; load average {os.getloadavg()[0]:.1f}")
    figures: dict[str, Any] = {}
    for tokens, split in SPLITS.items():
        for workers in WORKERS:
            requests = list(_requests(rows, split, workers))
            say(f"{workers} workers, blocks of {tokens} tokens, {_blocks(requests)} of them stored")
            found = _measure(requests, workers, arguments.peer)
            figures[f"{workers}_workers_{tokens}_tokens"] = _summary(found)
    targets = ("lookups_ratio", "stored_ratio")
    ratios = [f[name] for f in figures.values() for name in targets if name in f]
    result(**figures, ratio=min(ratios, default=None))
    return 0


def _rows(trace: Path | None) -> list[TraceRow]:
    if trace is not None:
        return read_trace(trace)
    return generate([Phase(130.0, 90.0, "conversation")], seed=1)


def _measure(requests: list[Request], workers: int, python: str) -> dict[str, Figures]:
    rounds: dict[str, list[Times]] = {}
    with peer(python, PEER, map(_for_peer, count(), requests)) as ask:
        for _ in range(ROUNDS):
            for kind, look_up in (("lookup", PrefixTrie.prefixes), ("as dict", PrefixTrie.match)):
                times = _replay(requests, workers, look_up)
                rounds.setdefault(f"ours, {kind}", []).append(times)
                if ask is not None:
                    rounds.setdefault(f"peer, {kind}", []).append(Times(*ask(kind)))
    return {kind: _figures(kind, times, _blocks(requests)) for kind, times in rounds.items()}


def _figures(kind: str, rounds: list[Times], blocks: int) -> Figures:
    """Of each call the median over the rounds."""
    finds = sorted(median(times) for times in zip(*(r.finds for r in rounds), strict=True))
    stores = [median(times) for times in zip(*(r.stores for r in rounds), strict=True)]
    figures = Figures(
        lookups_per_s=len(finds) / sum(finds),
        p50_us=1e6 * finds[len(finds) // 2],
        p99_us=1e6 * finds[len(finds) * 99 // 100],
        stored_per_s=blocks / sum(stores),
        cpu_s=median(r.cpu for r in rounds),
    )
    say(
        f"  {kind:13} {figures.lookups_per_s:9.0f} lookups/s, P50 {figures.p50_us:5.1f} µs, P99"
        f" {figures.p99_us:5.1f} µs; {figures.stored_per_s / 1e6:5.2f} M blocks/s stored;"
        f" {figures.cpu_s:.3f} s of CPU"
    )
    return figures


def _summary(found: dict[str, Figures]) -> dict[str, float]:
    ours = found["ours, lookup"]
    summary = {
        "lookups_per_s": round(ours.lookups_per_s),
        "p99_us": round(ours.p99_us, 1),
        "stored_per_s": round(ours.stored_per_s),
    }
    if "peer, lookup" in found:
        peers, its_dict = found["peer, lookup"], found["peer, as dict"]
        our_dict = found["ours, as dict"]
        ratios = {
            "lookups_ratio": ours.lookups_per_s / peers.lookups_per_s,
            "stored_ratio": ours.stored_per_s / peers.stored_per_s,
            "p99_ratio": peers.p99_us / ours.p99_us,
            "dict_ratio": our_dict.lookups_per_s / its_dict.lookups_per_s,
            "cpu_ratio": peers.cpu_s / ours.cpu_s,
        }
        say("  " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
        summary |= {name: round(ratio, 2) for name, ratio in ratios.items()}
    return summary


def _blocks(requests: list[Request]) -> int:
    return sum(len(r.report.stored) for r in requests if r.report) // (2 * HASH_BYTES)


# --- what is replayed


def _requests(rows: list[TraceRow], split: int, workers: int) -> Iterator[Request]:
    held: list[set[int]] = [set() for _ in range(workers)]
    last_holder: dict[int, int] = {}
    versions = [0] * workers
    for turn, row in enumerate(rows):
        known = [block for block in row.blocks if block in last_holder]
        worker = last_holder[known[-1]] if len(known) > SHARED_BLOCKS else turn % workers
        lacked = sum(block in held[worker] for block in row.blocks)
        held[worker].update(row.blocks)
        last_holder.update(dict.fromkeys(row.blocks, worker))
        names = [_name(split * block + part) for block in row.blocks for part in range(split)]
        report = None
        if lacked < len(row.blocks):
            versions[worker] += 1
            pairs = zip([ROOT, *names][split * lacked :], names[split * lacked :], strict=False)
            stored = b"".join(parent + name for parent, name in pairs)
            report = BlocksChanged(worker, versions[worker], stored, b"", 0, 0, 0)
        yield Request(b"".join(names), worker, report)


def _name(block: int) -> bytes:
    return hashlib.blake2b(block.to_bytes(8, "little"), digest_size=HASH_BYTES).digest()


def _replay(
    requests: list[Request], workers: int, look_up: Callable[[PrefixTrie, bytes], object]
) -> Times:
    trie, clock = PrefixTrie(workers, home_ranks=1), time.perf_counter
    finds: list[float] = []
    stores: list[float] = []
    cpu = time.process_time()
    for chain, _, report in requests:
        before = clock()
        look_up(trie, chain)
        finds.append(clock() - before)
        if report is not None:
            before = clock()
            trie.apply(report)
            stores.append(clock() - before)
    return Times(finds, stores, time.process_time() - cpu)


def _for_peer(number: int, request: Request) -> dict[str, Any]:
    """The chain, and the report as the peer's event, in halves of our names: its have 64 bits."""
    event = None
    if request.report is not None:
        names = _halves(request.report.stored)
        parent = names[0] or None
        blocks = [{"block_hash": name, "tokens_hash": name} for name in names[1::2]]
        stored = {"parent_hash": parent, "blocks": blocks}
        event = {"event_id": number, "data": {"stored": stored}}
    return {"chain": _halves(request.chain), "worker": request.worker, "event": event}


def _halves(names: bytes) -> list[int]:
    return memoryview(names).cast("Q").tolist()[::2]


if __name__ == "__main__":
    sys.exit(main())
