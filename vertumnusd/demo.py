"""``vertumnusd demo``: the main job on a real small model, and a table of what happened.

Starts a daemon of its own with ``etc/demo.toml`` on a free port, talks to it as clients do (one
HTTP completion, everything else over the websocket door), prints the answers, has the cluster adapt
(``demo_adaptation.py``), and ends the daemon.
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
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import trio
from trio_websocket import open_websocket_url

from vertumnusd.config import ETC
from vertumnusd.demo_adaptation import Watch, adapt
from vertumnusd.demo_client import Client, DemoError, ProgressLine, Row, facts_of, get, heading

CONFIG = ETC / "demo.toml"
DOCUMENT = ETC / "demo" / "orchard.txt"

START_LIMIT_S = 180.0
TOTAL_LIMIT_S = 900.0
STOP_LIMIT_S = 15.0
MESSAGE_BYTES = 16 << 20

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


def demo(json_path: Path | None, record_path: Path | None) -> int:
    """Run the demo. Returns the exit status of the process."""
    if record_path is None:
        return _demo(json_path, None)
    try:
        with record_path.open("wb") as record:
            return _demo(json_path, record)
    except OSError as error:
        print(f"--record {record_path}: {error.strerror or error}", file=sys.stderr)
        return 2


def _demo(json_path: Path | None, record: BinaryIO | None) -> int:
    started = time.monotonic()
    line = ProgressLine()
    port = _free_port()
    command = [sys.executable, "-m", "vertumnusd", "serve", "--config", str(CONFIG)]
    command += ["--port", str(port), "--log-level", "warning"]
    daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    failure: BaseExceptionGroup[DemoError] | None = None
    try:
        try:
            _wait_until_ready(daemon, port, line)
            rows = trio.run(_talk, port, line, started, record)
        finally:
            line.clear()
            status = _stop(daemon)
    except* DemoError as group:
        failure = group
    if failure is not None:
        print(f"demo failed: {_reason(failure)}", file=sys.stderr)
        return 1
    _print_table(rows, time.monotonic() - started)
    if json_path is not None:
        json_path.write_text(json.dumps({"requests": [asdict(row) for row in rows]}, indent=2))
        print(f"facts written to {json_path}")
    if status != 0:
        print(f"the daemon ended with status {status}", file=sys.stderr)
    return status


def _reason(group: BaseExceptionGroup[DemoError]) -> BaseException:
    """The first error of nurseries within nurseries."""
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


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


async def _talk(
    port: int, line: ProgressLine, started: float, record: BinaryIO | None
) -> list[Row]:
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
            watch = Watch(port, line, record)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch.run)
                rows += await adapt(client, watch, document)
                nursery.cancel_scope.cancel()
    if limit.cancelled_caught:
        raise DemoError(f"not done within {TOTAL_LIMIT_S:.0f} s")
    return rows


def _about(document: str, question: str = FIRST_ABOUT_DOCUMENT) -> str:
    return f"{document}\n\n{question}"


async def _composition(port: int) -> str:
    view = await trio.to_thread.run_sync(get, port, "/v1/cluster")
    return f"{view['model']} served as {view['composition']} on 127.0.0.1:{port}"


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
        **facts_of(answer["vertumnus"]),
    )
    print(f"  {prompt}|{text}")
    return row


# --- what is printed


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
