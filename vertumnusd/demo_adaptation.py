"""The part of ``vertumnusd demo`` in which the cluster adapts: nobody orders anything by hand.

A burst of short requests goes on until the controller has split a worker, and while one prefix is
asked for until a worker that did not compute it has it, and answers from it; then long documents go
on until the controller has merged. What is waited for has generous limits, since machines differ;
if it is not seen by then the demo fails, and says what was not seen.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, BinaryIO

import msgspec
import trio

from vertumnusd.demo_client import Client, DemoError, ProgressLine, Row, get, heading
from vertumnusd.messages import RecordingHeader, RecordingLine

PHASE_LIMIT_S = 240.0
POLL_S = 0.5
BURST = 24  # short requests at once; a key may have 32
SHORT_WORDS, LONG_WORDS, HOT_WORDS = 220, 1400, 700
ABOUT_PREFIX = ("Who?", "What?", "When?", "Where?", "Why?", "How?")


class Watch:
    """Looks at the cluster twice a second: says how the composition changes, and records."""

    def __init__(self, port: int, line: ProgressLine, record: BinaryIO | None) -> None:
        self.port = port
        self.line = line
        self.splits = self.merges = 0
        self._started = time.monotonic()
        self._settled: dict[str, Any] | None = None  # the last view without an operation under way
        self._changed = trio.Event()
        self._record = record
        self._write(RecordingHeader(interval_s=POLL_S, wall_s=time.time()))

    async def run(self) -> None:
        while True:
            await self.look()
            await trio.sleep(POLL_S)

    async def look(self) -> None:
        view = await trio.to_thread.run_sync(get, self.port, "/v1/cluster")
        at_s = time.monotonic() - self._started
        self._write(RecordingLine(at_s, view))
        if view["operations"]:
            return  # it is between two compositions
        before, self._settled = self._settled or view, view
        more = len(view["workers"]) - len(before["workers"])
        if more:
            self.line.clear()
            print(f"  {at_s:6.1f} s  {before['composition']} → {view['composition']}", flush=True)
            print(await trio.to_thread.run_sync(_why, self.port), flush=True)
            self.splits += more > 0
            self.merges += more < 0
            self._changed.set()
            self._changed = trio.Event()

    def _write(self, entry: RecordingHeader | RecordingLine) -> None:
        if self._record is not None:
            self._record.write(msgspec.json.encode(entry) + b"\n")

    async def until(self, seen: Callable[[], bool], what: str) -> None:
        """Wait for a change. Raises DemoError if it is not seen in time."""
        with trio.move_on_after(PHASE_LIMIT_S):
            while not seen():
                await self._changed.wait()
        if not seen():
            raise DemoError(f"{what} was not seen within {PHASE_LIMIT_S:.0f} s")


def _why(port: int) -> str:
    """What the controller says of its last split or merge."""
    command = [sys.executable, "-m", "vertumnusd", "why", "last-reconfiguration"]
    done = subprocess.run(
        [*command, "--port", str(port)], capture_output=True, text=True, timeout=60, check=False
    )
    return (done.stdout or done.stderr).rstrip()


async def adapt(client: Client, watch: Watch, document: str) -> list[Row]:
    """The three phases. Returns the rows of the requests for the hot prefix."""
    words = document.split()
    heading("a burst of short requests: the controller splits")
    async with _load(watch, words, SHORT_WORDS, BURST):
        await watch.until(lambda: watch.splits > 0, "a split")
        heading("meanwhile a prefix that others ask for, too: another worker gets it, and uses it")
        rows = await _spread(client, watch, " ".join(words[:HOT_WORDS]))
    heading("long documents, one after the other: the controller merges")
    merges = watch.merges
    async with _load(watch, words, LONG_WORDS, at_once=1):
        await watch.until(lambda: watch.merges > merges, "a merge")
    return rows


@asynccontextmanager
async def _load(watch: Watch, words: list[str], length: int, at_once: int) -> AsyncIterator[None]:
    """Keep asking for different texts of so many words; at the end the last ones are answered."""
    numbers, over = count(), trio.Event()

    async def ask_again() -> None:
        while not over.is_set():
            number = next(numbers)
            start = number * 37 % (len(words) - length)
            prompt = f"{length} words, {number}. {' '.join(words[start : start + length])}"
            await trio.to_thread.run_sync(_complete, watch.port, prompt)
            watch.line.show(f"{number + 1} requests of {length} words sent")

    async with trio.open_nursery() as nursery:
        for _ in range(at_once):
            nursery.start_soon(ask_again)
        yield
        over.set()
    watch.line.clear()
    print(f"  {next(numbers)} requests of {length} words were answered", flush=True)


def _complete(port: int, prompt: str) -> None:
    body = json.dumps({"prompt": prompt, "max_tokens": 2, "temperature": 0}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=PHASE_LIMIT_S) as answer:
            answer.read()
    except OSError as error:
        raise DemoError(f"a request was not answered: {error}") from error


async def _spread(client: Client, watch: Watch, prefix: str) -> list[Row]:
    """Ask about the prefix until it is a hit where it was not computed."""
    first = await client.ask("first", f"{prefix}\n\nFirst?")
    rows = [first]
    with trio.move_on_after(PHASE_LIMIT_S):
        while True:
            found = await client.ask_all((q, f"{prefix}\n\n{q}") for q in ABOUT_PREFIX)
            rows += found
            hits = [row for row in found if is_replica_hit(row, first)]
            if hits:
                held = await trio.to_thread.run_sync(get, watch.port, "/v1/cluster")
                homes = max((len(each["homes"]) for each in held["hot_prefixes"]), default=0)
                print(
                    f"  {first.worker} computed it; {hits[0].worker} has it, too, and answers with"
                    f" {hits[0].cached_tokens} of {hits[0].input_tokens} tokens from its cache"
                    f" (TTFT {hits[0].ttft_s:.2f} s; {first.ttft_s:.2f} s without);"
                    f" the hottest prefix is in {homes} homes"
                )
                return rows
    raise DemoError(f"a hit on a copy of a prefix was not seen within {PHASE_LIMIT_S:.0f} s")


def is_replica_hit(row: Row, first: Row) -> bool:
    cached = row.cached_tokens * 2 > row.input_tokens
    return cached and _ranks(row.worker).isdisjoint(_ranks(first.worker))


def _ranks(worker: str) -> set[int]:
    """Of a name such as ``CP2[0-1]``."""
    base, _, last = worker.partition("[")[2].rstrip("]").partition("-")
    return set(range(int(base), int(last or base) + 1))
