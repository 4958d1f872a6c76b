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
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import msgspec
import trio

from vertumnusd.demo_client import Client, DemoError, ProgressLine, Row, get, heading
from vertumnusd.messages import RecordingHeader, RecordingLine

PHASE_LIMIT_S = 240.0
POLL_S = 0.5
BURST = 24  # short requests at once; a key may have 32
SHORT_WORDS, LONG_WORDS, HOT_WORDS = 220, 900, 700
LONG_PAUSE_S = 6.0  # between two documents: long inputs, and little demand
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
    prefix = " ".join(words[:HOT_WORDS])
    heading("a prefix that many will ask about, computed once")
    first = await client.ask("First?", f"{prefix}\n\nFirst?")
    async with trio.open_nursery() as nursery:
        heading("a burst of short requests: the controller splits")
        burst = Load(watch, words, SHORT_WORDS)
        splits = watch.splits
        for _ in range(BURST):
            nursery.start_soon(burst.run)
        await watch.until(lambda: watch.splits > splits, "a split")
        heading("meanwhile the prefix is asked about: another worker gets a copy, and uses it")
        rows = await _spread(client, watch, prefix)
        heading("in place of the burst a long document now and then: the controller merges")
        merges = watch.merges
        burst.over.set()
        documents = Load(watch, words, LONG_WORDS, LONG_PAUSE_S)
        nursery.start_soon(documents.run)
        await watch.until(lambda: watch.merges > merges, "a merge")
        documents.over.set()
    print(f"  {burst.sent} short and {documents.sent} long requests were answered", flush=True)
    return [first, *rows]


class Load:
    """Asks for different texts of so many words, again and again, until it is ``over``."""

    def __init__(self, watch: Watch, words: list[str], length: int, pause_s: float = 0.0) -> None:
        self.sent = 0
        self.over = trio.Event()
        self._watch = watch
        self._words = words
        self._length = length
        self._pause_s = pause_s

    async def run(self) -> None:
        """One request at a time; may run many times at once."""
        while not self.over.is_set():
            self.sent += 1
            start = self.sent * 37 % (len(self._words) - self._length)
            text = " ".join(self._words[start : start + self._length])
            prompt = f"{self._length} words, {self.sent}. {text}"
            await trio.to_thread.run_sync(
                _complete, self._watch.port, prompt, abandon_on_cancel=True
            )
            self._watch.line.show(f"{self.sent} requests of {self._length} words sent")
            with trio.move_on_after(self._pause_s):
                await self.over.wait()


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
    """Ask about the prefix until it was a hit in two places."""
    rows: list[Row] = []
    with trio.move_on_after(PHASE_LIMIT_S):
        while True:
            rows += await client.ask_all((q, f"{prefix}\n\n{q}") for q in ABOUT_PREFIX)
            if (places := two_places(rows)) is not None:
                one, other = places
                print(
                    f"  both {one.worker} and {other.worker} have it: {other.cached_tokens} of"
                    f" {other.input_tokens} tokens came from the cache there"
                )
                return rows
    raise DemoError(f"a hit on a copy of a prefix was not seen within {PHASE_LIMIT_S:.0f} s")


def two_places(rows: Sequence[Row]) -> tuple[Row, Row] | None:
    """Two hits at workers that share no rank: so the prefix lies in two homes at least."""
    hits = [row for row in rows if row.cached_tokens * 2 > row.input_tokens]
    pairs = ((one, other) for one in hits for other in hits)
    return next(
        (pair for pair in pairs if _ranks(pair[0].worker).isdisjoint(_ranks(pair[1].worker))), None
    )


def _ranks(worker: str) -> set[int]:
    """Of a name such as ``CP2[0-1]``."""
    base, _, last = worker.partition("[")[2].rstrip("]").partition("-")
    return set(range(int(base), int(last or base) + 1))
