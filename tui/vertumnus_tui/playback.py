"""Recordings: read, played at a speed, sought in. And written, from the frames of a feed."""

from __future__ import annotations

import gzip
from bisect import bisect_right
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from vertumnus_tui.model import FeedError, Model
from vertumnusd.messages import (
    RECORDING_FORMAT,
    RECORDING_VERSION,
    RecordingHeader,
    RecordingLine,
)

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
LARGEST_BYTES = 1 << 30
GZIP = b"\x1f\x8b"


class RecordingError(Exception):
    """The file is no recording, or cannot be read or written; the message says why."""


class _Time(msgspec.Struct):
    t: float


class Recorded:
    """A recording in memory: its lines are decoded when they are played."""

    def __init__(self, header: RecordingHeader, lines: list[bytes], times: list[float]) -> None:
        self.header = header
        self.times = times
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines)

    def line(self, n: int) -> RecordingLine:
        try:
            return msgspec.json.decode(self._lines[n], type=RecordingLine)
        except msgspec.DecodeError as error:
            raise RecordingError(f"cannot be read: {error}") from error

    def cut(self, count: int) -> None:
        """Keep the first ``count`` lines."""
        del self._lines[count:], self.times[count:]


def read_recording(path: Path) -> Recorded:
    """Plain or gzip. Raises :class:`RecordingError`."""
    try:
        with path.open("rb") as file:
            packed = file.peek(2)[:2] == GZIP
            with gzip.GzipFile(fileobj=file) if packed else nullcontext(file) as opened:
                content = opened.read(LARGEST_BYTES + 1)
    except (OSError, EOFError) as error:
        raise RecordingError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > LARGEST_BYTES:
        raise RecordingError(f"{path}: larger than {LARGEST_BYTES >> 20} MiB")
    first, *lines = content.splitlines() or [b""]
    header = _header(path, first)
    try:
        times = [msgspec.json.decode(each, type=_Time).t for each in lines]
    except msgspec.DecodeError as error:
        raise RecordingError(f"{path}: a line cannot be read: {error}") from error
    if not times:
        raise RecordingError(f"{path}: there is nothing in it")
    if times != sorted(times):
        raise RecordingError(f"{path}: time runs backwards in it")
    return Recorded(header, lines, times)


def _header(path: Path, first: bytes) -> RecordingHeader:
    try:
        header = msgspec.json.decode(first, type=RecordingHeader)
    except msgspec.DecodeError as error:
        raise RecordingError(f"{path}: no {RECORDING_FORMAT}: its first line is none") from error
    if header.version != RECORDING_VERSION:
        raise RecordingError(
            f"{path}: version {header.version} of the format; {RECORDING_VERSION} is known here"
        )
    return header


class Player:
    """Moves through a recording and keeps a model at its position.

    A recording ends before the first line that cannot be shown.
    """

    def __init__(self, recorded: Recorded) -> None:
        """Raises :class:`RecordingError` if that is the first one."""
        self.model = Model()
        self.speed = 1.0
        self.paused = False
        self.trouble = ""  # why it ends before its end
        self._recorded = recorded
        self._shown = 0  # lines
        self._t = recorded.times[0]
        self._show()
        if not self._shown:
            raise RecordingError(self.trouble)

    @property
    def at_s(self) -> float:
        return self._t - self._recorded.times[0]

    @property
    def length_s(self) -> float:
        return self._recorded.times[-1] - self._recorded.times[0]

    def pass_time(self, real_s: float) -> None:
        """Play on, if it is not paused; at the end it stays."""
        if not self.paused:
            self.seek(self.at_s + real_s * self.speed)

    def seek(self, at_s: float) -> None:
        """To so many seconds from the beginning. Backwards everything is played again."""
        times = self._recorded.times
        t = times[0] + min(self.length_s, max(0.0, at_s))
        if t < self._t:
            self.model = Model()
            self._shown = 0
        self._t = t
        self._show()

    def change_speed(self, faster: bool) -> None:
        at = SPEEDS.index(self.speed) + (1 if faster else -1)
        self.speed = SPEEDS[min(len(SPEEDS) - 1, max(0, at))]

    def _show(self) -> None:
        due = bisect_right(self._recorded.times, self._t)
        while self._shown < due:
            try:
                line = self._recorded.line(self._shown)
                self.model.show(line, self._recorded.header.wall_s)
            except (RecordingError, FeedError) as error:
                self.trouble = f"line {self._shown + 2}: {error}"
                self._recorded.cut(self._shown)
                self._t = min(self._t, self._recorded.times[-1]) if self._shown else self._t
                return
            self._shown += 1


class Recorder:
    """Writes what the model shows, once an interval, with the events since."""

    def __init__(self, path: Path, interval_s: float = 1.0) -> None:
        """Raises :class:`RecordingError`."""
        self.path = path
        self._interval_s = interval_s
        self._events: list[dict[str, Any]] = []
        self._next: float | None = None
        try:
            self._file: IO[bytes] = path.open("wb")
        except OSError as error:
            raise RecordingError(f"{path}: {error.strerror or error}") from error

    def take(self, model: Model, events: list[dict[str, Any]]) -> None:
        """After a frame. Raises :class:`RecordingError` if it cannot be written."""
        self._events += events
        if self._next is None:
            header = RecordingHeader(interval_s=self._interval_s, wall_s=model.wall_s)
            self._write(header)
            self._next = model.t
        if model.t >= self._next:
            self._write(RecordingLine(model.t, model.raw(), self._events))
            self._events = []
            self._next = model.t + self._interval_s

    def close(self) -> None:
        with suppress(OSError):  # what is left cannot be written: that was told already
            self._file.close()

    def _write(self, entry: RecordingHeader | RecordingLine) -> None:
        try:
            self._file.write(msgspec.json.encode(entry) + b"\n")
            self._file.flush()
        except OSError as error:
            raise RecordingError(f"{self.path}: {error.strerror or error}") from error
