"""``vertumnusd demo``: the main job on a real small model, and a table of what happened.

Starts a daemon of its own with ``etc/demo.toml`` on a free port, talks to it as clients do (one
HTTP completion, everything else over the websocket door), prints the answers, and ends the daemon.
A line shows how far loading and long prefills are.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import trio
from trio_websocket import WebSocketConnection, open_websocket_url

from vertumnusd.config import ETC

CONFIG = ETC / "demo.toml"
DOCUMENT = ETC / "demo" / "orchard.txt"

START_LIMIT_S = 180.0
TOTAL_LIMIT_S = 230.0
STOP_LIMIT_S = 15.0
MESSAGE_BYTES = 16 << 20
PIPE_INTERVAL_S = 2.0

SHORT = (
    "Name three primary colours.",
    "What is the boiling point of water in degrees Celsius?",
    "Write one sentence about the sea.",
)
FIRST_ABOUT_DOCUMENT = "In one sentence: what is this document about?"
ABOUT_DOCUMENT = (
    "Who founded the bakery orchard, and when?",
    "What rent does the orchard pay the parish?",
    "What is the press called?",
    "How much water does a tree get in its first summer?",
)


@dataclass(frozen=True, slots=True)
class Row:
    """What one request was and did; the rows of the table and of ``--json``."""

    label: str
    worker: str
    degree: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_s: float
    predicted_s: float
    prefill_s: float
    ttft_s: float
    handoff_ttft_s: float
    text: str


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


def demo(json_path: Path | None) -> int:
    """Run the demo. Returns the exit status of the process."""
    started = time.monotonic()
    line = ProgressLine()
    port = _free_port()
    command = [sys.executable, "-m", "vertumnusd", "serve", "--config", str(CONFIG)]
    command += ["--port", str(port), "--log-level", "warning"]
    daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        try:
            _wait_until_ready(daemon, port, line)
            rows = trio.run(_talk, port, line, started)
        finally:
            line.clear()
            status = _stop(daemon)
    except DemoError as error:
        print(f"demo failed: {error}", file=sys.stderr)
        return 1
    _print_table(rows, time.monotonic() - started)
    if json_path is not None:
        json_path.write_text(json.dumps({"requests": [asdict(row) for row in rows]}, indent=2))
        print(f"facts written to {json_path}")
    if status != 0:
        print(f"the daemon ended with status {status}", file=sys.stderr)
    return status


# --- the daemon


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(daemon: subprocess.Popen[bytes], port: int, line: ProgressLine) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if daemon.poll() is not None:
            raise DemoError(f"the daemon ended with status {daemon.returncode}")
        reason = _unready_reason(port)
        if not reason:
            return
        line.show(reason)
        time.sleep(0.1)
    raise DemoError(f"the daemon was not ready within {START_LIMIT_S:.0f} s")


def _unready_reason(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
            return ""
    except urllib.error.HTTPError as error:
        with error:
            body = json.loads(error.read() or b"{}")
        return str(body.get("error", {}).get("message", "starting"))
    except OSError:
        return "starting the daemon"


def _stop(daemon: subprocess.Popen[bytes]) -> int:
    if daemon.poll() is None:
        daemon.send_signal(signal.SIGTERM)
    try:
        return daemon.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        return daemon.wait()


# --- the conversation


async def _talk(port: int, line: ProgressLine, started: float) -> list[Row]:
    rows: list[Row] = []
    with trio.move_on_after(TOTAL_LIMIT_S - (time.monotonic() - started)) as limit:
        heading(await _composition(port))
        rows.append(await _complete(port, "The capital of France is"))
        url = f"ws://127.0.0.1:{port}/v1/responses"
        async with open_websocket_url(url, max_message_size=MESSAGE_BYTES) as socket_:
            client = Client(socket_, port, line)
            heading("short questions, several at once")
            rows += await client.ask_all((question, question) for question in SHORT)
            document = DOCUMENT.read_text()
            heading("a long document, never seen before")
            rows.append(await client.ask(FIRST_ABOUT_DOCUMENT, _about(document)))
            heading("questions about the same document, several at once")
            rows += await client.ask_all((q, _about(document, q)) for q in ABOUT_DOCUMENT)
    if limit.cancelled_caught:
        raise DemoError(f"not done within {TOTAL_LIMIT_S:.0f} s")
    return rows


def _about(document: str, question: str = FIRST_ABOUT_DOCUMENT) -> str:
    return f"{document}\n\n{question}"


async def _composition(port: int) -> str:
    view = await trio.to_thread.run_sync(_get, port, "/v1/cluster")
    return f"{view['model']} served as {view['composition']} on 127.0.0.1:{port}"


def _get(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return json.load(answer)


async def _complete(port: int, prompt: str) -> Row:
    """One plain completion over HTTP: the prompt is continued, with no chat around it."""
    heading("a plain completion over HTTP")
    body = json.dumps({"prompt": prompt, "max_tokens": 8, "temperature": 0}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"}
    )

    def post() -> Any:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    answer = await trio.to_thread.run_sync(post)
    usage, text = answer["usage"], answer["choices"][0]["text"]
    row = Row(
        label=prompt,
        input_tokens=usage["prompt_tokens"],
        cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
        output_tokens=usage["completion_tokens"],
        text=text,
        **_facts(answer["vertumnus"]),
    )
    print(f"  {prompt}|{text}")
    return row


def _facts(vertumnus: dict[str, Any]) -> dict[str, Any]:
    names = ("worker", "degree", "queue_s", "predicted_s", "prefill_s", "ttft_s", "handoff_ttft_s")
    return {name: vertumnus[name] for name in names}


class Client:
    """One websocket; every question is a lane of its own, so answers stream side by side."""

    def __init__(self, connection: WebSocketConnection, port: int, line: ProgressLine) -> None:
        self._connection = connection
        self._port = port
        self._line = line
        self._lanes = 0

    async def ask(self, label: str, text: str) -> Row:
        (row,) = await self.ask_all([(label, text)])
        return row

    async def ask_all(self, questions: Iterable[tuple[str, str]]) -> list[Row]:
        """Send all questions, print answers as they complete; rows in the order of asking."""
        lanes: dict[str, str] = {}
        for label, text in questions:
            self._lanes += 1
            lane = f"lane{self._lanes}"
            lanes[lane] = label
            create = {"type": "response.create", "stream_id": lane, "input": text}
            await self._connection.send_message(json.dumps(create | {"max_output_tokens": 24}))
        rows: dict[str, Row] = {}
        failure = ""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._show_progress)
            while len(rows) < len(lanes) and not failure:
                event = json.loads(await self._connection.get_message())
                label = lanes.get(event.get("stream_id", ""), "?")
                match event["type"]:
                    case "vertumnus:placement":
                        self._show_placement(label, event["placement"])
                    case "response.output_text.delta":
                        self._line.show(f"{label[:24]!r} … {event['delta']!r}")
                    case "response.completed" | "response.incomplete":
                        rows[event["stream_id"]] = self._row(label, event["response"])
                    case "error" | "response.failed":
                        failure = f"{label!r}: {json.dumps(event)[:400]}"
            nursery.cancel_scope.cancel()
        if failure:
            raise DemoError(failure)
        return [rows[lane] for lane in lanes]

    def _show_placement(self, label: str, placement: dict[str, Any]) -> None:
        self._line.clear()
        print(
            f"  {label!r} → {placement['worker']}: {placement['input_tokens']} tokens,"
            f" {placement['cached_tokens']} cached, queue {placement['queue_s']:.2f} s,"
            f" prefill predicted {placement['service_s']:.2f} s"
        )

    def _row(self, label: str, response: dict[str, Any]) -> Row:
        usage = response["usage"]
        text = "".join(p["text"] for item in response["output"] for p in item["content"])
        self._line.clear()
        print(f"  {label!r}: {text.strip()!r}")
        return Row(
            label=label,
            input_tokens=usage["input_tokens"],
            cached_tokens=usage["input_tokens_details"]["cached_tokens"],
            output_tokens=usage["output_tokens"],
            text=text,
            **_facts(response["vertumnus"]),
        )

    async def _show_progress(self) -> None:
        """While a prefill runs for long, show how many layers it has done."""
        while True:
            await trio.sleep(0.5)
            view = await trio.to_thread.run_sync(_get, self._port, "/v1/cluster")
            for request in view["requests"]:
                if request["layers"] and request["predicted_s"] > 1:
                    self._line.show(
                        f"prefilling {request['input_tokens']} tokens on {request['worker']}:"
                        f" layer {request['layers_done']} of {request['layers']}"
                    )


# --- what is printed


class ProgressLine:
    """One line that is written over. On a pipe: a line now and then."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._shown = ""
        self._next_line = 0.0

    def show(self, text: str) -> None:
        now = time.monotonic()
        if text == self._shown or (not self._terminal and now < self._next_line):
            return
        self._shown = text
        self._next_line = now + PIPE_INTERVAL_S
        if self._terminal:
            print(f"\r\033[K  {text[:110]}", end="", flush=True)
        else:
            print(f"  … {text[:110]}", flush=True)

    def clear(self) -> None:
        if self._terminal and self._shown:
            print("\r\033[K", end="", flush=True)
        self._shown = ""


def heading(text: str) -> None:
    print(f"\n{text}", flush=True)


def _print_table(rows: list[Row], total_s: float) -> None:
    heading("summary (seconds; TTFT* = first token after hand-off and one decode step)")
    columns = ("request", "worker", "tokens", "cached", "queue", "predicted", "prefill", "TTFT")
    print(
        f"  {columns[0]:34}{columns[1]:>9}"
        + "".join(f"{c:>10}" for c in columns[2:])
        + "     TTFT*"
    )
    for row in rows:
        label = row.label if len(row.label) <= 32 else row.label[:31] + "…"
        times = (row.queue_s, row.predicted_s, row.prefill_s, row.ttft_s, row.handoff_ttft_s)
        print(
            f"  {label:34}{row.worker:>9}{row.input_tokens:>10}{row.cached_tokens:>10}"
            + "".join(f"{value:>10.3f}" for value in times)
        )
    print(f"{len(rows)} requests answered in {total_s:.0f} s, start and end of the daemon included")
