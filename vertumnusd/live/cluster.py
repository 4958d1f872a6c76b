"""A real daemon with paced ranks, as a comparison needs it: started, asked, and ended.

Times of the decisions (windows, deadlines, prefill times) are given as the simulator takes them,
and are multiplied by the pace on the way into the configuration.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from vertumnusd.control.settings import ReconfigurationSettings, Settings

START_LIMIT_S = 120.0
END_LIMIT_S = 30.0
DECODE_KV_TOKENS = 1 << 18  # the longest request must fit, though none decodes


@dataclass(frozen=True, slots=True)
class Conversion:
    """A split or merge. The drain is in seconds of the profile's time, the switch in real ones."""

    kind: str
    outcome: str
    drain_s: float
    switch_s: float


@dataclass(frozen=True, slots=True)
class LiveCluster:
    """A daemon that serves, reached through its admin socket."""

    socket: Path
    pace: float
    log: Path  # of JSON lines
    pid: int

    def cpu_s(self) -> float:
        """CPU time of the daemon so far: its own, without its ranks'."""
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        user, system = stat.rpartition(") ")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def conversions(self) -> list[Conversion]:
        """All that ended up to now, as its log tells."""
        found = []
        for line in self.log.read_text().splitlines():
            entry = json.loads(line) if line.startswith("{") else {}
            if entry.get("event") == "converted":
                drain_s, switch_s = entry["drain_s"] / self.pace, entry["switch_s"]
                found.append(Conversion(entry["kind"], entry["outcome"], drain_s, switch_s))
        return found


@contextmanager
def live_cluster(settings: Settings, profile: str, pace: float) -> Iterator[LiveCluster]:
    """Start it, wait until it serves, and end it. Raises RuntimeError if it does not start."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config, socket, log = folder / "node.toml", folder / "admin.sock", folder / "log"
        config.write_text(_toml(_configuration(settings, profile, pace, socket)))
        command = [sys.executable, "-m", "vertumnusd", "serve", "--config", str(config)]
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*command, "--port", "0", "--log-format", "json"], stdout=file, stderr=file
            )
        try:
            _wait_until_it_serves(process, log)
            yield LiveCluster(socket, pace, log, process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(END_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _configuration(
    settings: Settings, profile: str, pace: float, socket: Path
) -> dict[str, dict[str, Any]]:
    block = settings.block_tokens
    return {
        "node": {"admin_socket": str(socket), "drain_s": 1.0},
        "model": {"profile": profile},
        "cluster": {
            "ranks": settings.ranks,
            "cp_degrees": list(settings.cp_degrees),
            "composition": settings.composition,
            "home_ranks": settings.home_ranks,
        },
        "cache": {
            "block_tokens": block,
            "kv_tokens": settings.kv_blocks * block,
            "decode_kv_tokens": DECODE_KV_TOKENS,
        },
        "placement": {
            "policy": settings.policy,
            "beta": settings.beta,
            "lambda": settings.lambda_,
            "fetch": settings.does("fetch"),
            "max_queue_tokens": settings.max_queue_tokens,
            "max_queue_s": settings.max_queue_s,
            "unplaced_wait_s": settings.unplaced_wait_s,
        },
        "rank": {
            "device": "paced",
            "pace": pace,
            "step_s": settings.step_s * pace,
        },
        "adaptation": _slowed(settings.reconfiguration, pace),
    }


def _slowed(settings: ReconfigurationSettings, pace: float) -> dict[str, Any]:
    """As a section of the file; seconds are multiplied by the pace."""
    values = msgspec.to_builtins(settings, str_keys=True)
    return {k: v * pace if k.endswith("_s") else v for k, v in values.items()}


def _toml(sections: dict[str, dict[str, Any]]) -> str:
    text = "".join(
        f"[{name}]\n" + "".join(f"{key} = {_value(value)}\n" for key, value in values.items())
        for name, values in sections.items()
    )
    assert tomllib.loads(text)
    return text


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


def _wait_until_it_serves(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if '"event":"serving"' in (text := log.read_text().replace('": "', '":"')):
            return
        if process.poll() is not None:
            raise RuntimeError(f"the daemon ended with status {process.returncode}:\n{text}")
        time.sleep(0.1)
    raise RuntimeError(f"the daemon did not serve within {START_LIMIT_S:.0f} s")
