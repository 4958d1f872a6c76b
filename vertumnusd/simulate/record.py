"""Recordings of a simulated cluster, for a console to play: JSON lines.

The first line is a header: ``{"format": "vertumnus-recording", "version": 1, "interval_s": …,
"policy": …}``. Every further line is the cluster at a virtual time, and the commands that the
controller gave since the line before: ``{"t": …, "cluster": …, "events": [{"t": …, "type": …}]}``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any

import msgspec

from vertumnusd.messages import ControlCommand

FORMAT = "vertumnus-recording"
VERSION = 1


class Recording:
    def __init__(self, file: IO[bytes], interval_s: float, policy: str) -> None:
        self.interval_s = interval_s
        self._file = file
        self._events: list[dict[str, Any]] = []
        header = {"format": FORMAT, "version": VERSION, "interval_s": interval_s, "policy": policy}
        self._write(header)

    def commands(self, now: float, commands: Sequence[ControlCommand]) -> None:
        self._events += [{"t": now, **msgspec.to_builtins(command)} for command in commands]

    def cluster(self, now: float, snapshot: dict[str, Any]) -> None:
        self._write({"t": now, "cluster": snapshot, "events": self._events})
        self._events = []

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")
