"""A daemon of one's own for a benchmark, and a client thin enough not to disturb the figures."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = (ROOT / "etc" / "demo" / "orchard.txt").read_text()

START_LIMIT_S = 120.0
REQUEST_LIMIT_S = 300.0


def say(text: str) -> None:
    """Progress goes to stderr; the result is the last line of stdout."""
    print(f"  {text}", file=sys.stderr, flush=True)


def result(**figures: Any) -> None:
    """Print the one JSON line of a benchmark, its ratio last."""
    assert list(figures)[-1] == "ratio", "the ratio comes last"
    print(json.dumps(figures))


median = statistics.median


@dataclass(frozen=True, slots=True)
class Answer:
    """One completion: what the node said of it, and what the client saw."""

    facts: dict[str, Any]
    input_tokens: int
    cached_tokens: int
    text: str
    first_token_s: float  # from sending the request to its first token, seen by the client
    total_s: float  # and to its last


class Client:
    """One kept HTTP connection."""

    def __init__(self, port: int, api_key: str = "none") -> None:
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {api_key}"}
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_LIMIT_S)
        self._connection.connect()
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def get(self, path: str) -> Any:
        return json.loads(self.request("GET", path)[1])

    def request(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and body of one exchange."""
        self._connection.request(method, path, body, self._headers)
        response = self._connection.getresponse()
        return response.status, response.read()

    def complete(self, prompt: str | list[int], max_tokens: int = 1) -> Answer:
        """A greedy streamed completion."""
        body = json.dumps(
            {
                "prompt": prompt,
                "max_tokens": max_tokens,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        started = time.perf_counter()
        self._connection.request("POST", "/v1/completions", body, self._headers)
        response = self._connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"HTTP {response.status}: {response.read().decode()}")
        first_token_s, text = 0.0, ""
        facts: dict[str, Any] = {}
        last: dict[str, Any] = {}
        while (line := response.readline()) != b"":
            if not line.startswith(b"data: {"):
                continue
            if not first_token_s:
                first_token_s = time.perf_counter() - started
            last = json.loads(line[6:])
            facts |= last.get("vertumnus", {})
            text += "".join(choice["text"] for choice in last["choices"])
        usage = last["usage"]
        return Answer(
            facts=facts,
            input_tokens=usage["prompt_tokens"],
            cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
            text=text,
            first_token_s=first_token_s,
            total_s=time.perf_counter() - started,
        )


def ask(port: int, prompt: str | list[int], max_tokens: int = 1) -> Answer:
    """One completion over a connection of its own."""
    with Client(port) as client:
        return client.complete(prompt, max_tokens)


def ask_at_once(port: int, prompts: list[str], max_tokens: int) -> list[Answer]:
    """All at once; the answers in the order of the prompts."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda prompt: ask(port, prompt, max_tokens), prompts))


@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon that serves."""

    process: subprocess.Popen[bytes]
    port: int


@contextmanager
def daemon(**sections: dict[str, Any]) -> Iterator[Daemon]:
    """A serving daemon with these configuration sections; it is ended at the end of the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        for section, values in sections.items():
            pairs = "\n".join(f"{key} = {json.dumps(value)}" for key, value in values.items())
            file.write(f"[{section}]\n{pairs}\n")
        file.flush()
        command = [sys.executable, "-m", "vertumnusd", "serve", "--config", file.name]
        process = subprocess.Popen([*command, "--port", str(port), "--log-level", "warning"])
        try:
            _wait_until_ready(process, port)
            yield Daemon(process, port)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def children(pid: int) -> list[int]:
    """The processes that ``pid`` started and that are still there."""
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the daemon ended with status {process.returncode}")
        try:
            with Client(port) as client:
                if client.request("GET", "/health")[0] == 200:
                    return
        except OSError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"the daemon was not ready within {START_LIMIT_S:.0f} s")
