"""How many requests a second the simulator replays, with the real controller deciding.

64 workers of two degrees, prefix caches, reconfiguration and replication on; a Mooncake trace as
the argument, else a generated load with the statistics of the conversation trace. Beside it, in
the same run, the offline trace replay of ``ai-dynamo-runtime`` with its KV router over 64 equal
workers, on the same arrivals with one output token each. The peer runs in a process of its own, by
``--peer PYTHON`` with an interpreter that has it. CPU seconds; medians.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import median, result, say

from vertumnusd.simulate.choice import Choice
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.generate import Phase, generate
from vertumnusd.simulate.outcome import summarise
from vertumnusd.simulate.policies import run_policy
from vertumnusd.simulate.traces import BLOCK_TOKENS, Arrival, TraceRow, arrivals, read_trace

CONDITIONS = Conditions(ranks=160, cp_degrees=(2, 4))
CHOICE = Choice("ours", "16CP4/48CP2", reconfigures=True, replicates=True)
LIGHT = Choice("mix", "16CP4/48CP2")
WORKERS = 64
RATE = 90.0  # requests/s
REPEATS = 3
TAIL_ID = 1_000_000_000  # ids from here on name partial blocks, each its own

PEER = """
import json, sys, time
from dynamo._core import run_mocker_trace_replay
for _ in range(int(sys.argv[2])):
    started = time.process_time()
    replay = run_mocker_trace_replay(
        [sys.argv[1]], num_workers=int(sys.argv[3]), router_mode="kv_router",
        replay_mode="offline", trace_block_size=int(sys.argv[4]),
    )
    assert replay.summary["completed_requests"] == replay.summary["num_requests"]
    print(time.process_time() - started, flush=True)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", nargs="?", type=Path, help="a Mooncake trace")
    parser.add_argument("--peer", default=sys.executable, help="python with ai-dynamo-runtime")
    arguments = parser.parse_args()
    rows = _rows(arguments.trace)
    drawn = arrivals(rows, seed=0, noise_sigma=CONDITIONS.noise_sigma, rate=RATE)
    ours = _per_second(drawn, CHOICE)
    light = _per_second(drawn, LIGHT)
    peer = _peer_per_second(arguments.peer, drawn)
    result(
        requests=len(drawn),
        workers=WORKERS,
        controller_per_s=round(ours),
        light_per_s=round(light),
        peer_per_s=round(peer) if peer else None,
        light_ratio=round(light / peer, 2) if peer else None,
        ratio=round(ours / peer, 2) if peer else None,
    )
    return 0


def _rows(trace: Path | None) -> list[TraceRow]:
    if trace is not None:
        return read_trace(trace)
    return generate([Phase(130.0, RATE, "conversation")], seed=1)


def _per_second(drawn: list[Arrival], choice: Choice) -> float:
    times = []
    for _ in range(REPEATS):
        started = time.process_time()
        outcome = run_policy(choice, drawn, CONDITIONS)
        times.append(time.process_time() - started)
        summary = summarise(outcome)
        say(
            f"{choice.policy}: {len(drawn) / times[-1]:.0f} requests/s; mean TTFT"
            f" {summary.mean_s * 1e3:.0f} ms, hit rate {summary.hit_rate:.3f},"
            f" {summary.conversions} conversions, {summary.transfers} copies"
        )
    return len(drawn) / median(times)


def _peer_per_second(python: str, drawn: list[Arrival]) -> float:
    """0.0 if the peer is not there."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for number, arrival in enumerate(drawn):
            partial = [TAIL_ID + number] if arrival.input_tokens % BLOCK_TOKENS else []
            row = {
                "timestamp": round(arrival.at_s * 1e3),
                "input_length": arrival.input_tokens,
                "output_length": 1,
                "hash_ids": [*arrival.blocks, *partial],
            }
            file.write(json.dumps(row) + "\n")
        file.flush()
        sizes = [file.name, str(REPEATS), str(WORKERS), str(BLOCK_TOKENS)]
        done = subprocess.run(
            [python, "-c", PEER, *sizes],
            env={**os.environ, "DYN_LOG": "error"},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        say(f"no peer: {done.stderr.strip().splitlines()[-1]}")
        return 0.0
    times = [float(line) for line in done.stdout.split()]
    return len(drawn) / median(times)


if __name__ == "__main__":
    sys.exit(main())
