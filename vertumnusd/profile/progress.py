"""Where a long run is: one moving line on a terminal, a plain line now and then otherwise."""

from __future__ import annotations

import time
from typing import TextIO

PLAIN_INTERVAL_S = 10.0
WIDTH = 100


class Progress:
    """Writes to ``stream``. The moving line is wiped before anything else is said."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._moves = stream.isatty()
        self._shown = False
        self._next_plain = 0.0

    def show(self, text: str) -> None:
        """Something that will be overtaken by the next one."""
        now = time.monotonic()
        if self._moves:
            self._stream.write(f"\r\033[K{text[:WIDTH]}")
            self._shown = True
        elif now >= self._next_plain:
            self._next_plain = now + PLAIN_INTERVAL_S
            self._stream.write(f"{text}\n")
        self._stream.flush()

    def say(self, text: str) -> None:
        """Something that stays."""
        self.wipe()
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def wipe(self) -> None:
        if self._shown:
            self._stream.write("\r\033[K")
            self._stream.flush()
            self._shown = False


def duration(seconds: float) -> str:
    """Such as ``45 s``, ``3 min`` and ``1 h 20 min``."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{max(0.0, seconds):.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
