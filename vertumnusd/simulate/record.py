"""Recordings of a simulated cluster, for a console to play (``messages/feed.py`` has the format).

Every line has the cluster at a virtual time, and the commands that the controller gave since the
line before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any

import msgspec

from vertumnusd.control.snapshot import show_event
from vertumnusd.messages import ControlCommand, RecordingHeader, RecordingLine


class Recording:
    def __init__(self, file: IO[bytes], interval_s: float, policy: str) -> None:
        self.interval_s = interval_s
        self._file = file
        self._events: list[dict[str, Any]] = []
        self._write(RecordingHeader(interval_s=interval_s, policy=policy))

    def commands(self, now: float, commands: Sequence[ControlCommand]) -> None:
        shown = map(show_event, commands)
        self._events += [{"t": now, **event} for event in shown if event is not None]

    def cluster(self, now: float, snapshot: dict[str, Any]) -> None:
        self._write(RecordingLine(now, snapshot, self._events))
        self._events = []

    def _write(self, line: RecordingHeader | RecordingLine) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")
