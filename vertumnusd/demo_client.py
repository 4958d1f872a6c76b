"""How ``vertumnusd demo`` talks to a daemon, and the lines that it shows meanwhile."""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import trio
from trio_websocket import WebSocketConnection

PIPE_INTERVAL_S = 2.0


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


def get(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return json.load(answer)


def facts_of(vertumnus: dict[str, Any]) -> dict[str, Any]:
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
            **facts_of(response["vertumnus"]),
        )

    async def _show_progress(self) -> None:
        """While a prefill runs for long, show how many layers it has done."""
        while True:
            await trio.sleep(0.5)
            view = await trio.to_thread.run_sync(get, self._port, "/v1/cluster")
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
