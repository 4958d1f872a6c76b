"""Cuts a growing text at the first of some strings.

Text that may turn out to begin a stop string is held back until more of it is known, so what was
shown is never taken back and nothing of a stop string is ever shown.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Cuts a text at the first of some strings, wherever its pieces begin and end."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.hit = False

    def push(self, piece: str) -> str:
        """What may be shown now. After ``hit`` turned true there is nothing more to show."""
        if not self._stops:
            return piece
        text = self._held + piece
        found = [at for at in map(text.find, self._stops) if at >= 0]
        if found:
            self.hit = True
            self._held = ""
            return text[: min(found)]
        shown = len(text) - self._beginning_at_end(text)
        self._held = text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """What was held back and did not become a stop string."""
        rest, self._held = self._held, ""
        return rest

    def _beginning_at_end(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins a stop string."""
        longest = min(max(map(len, self._stops)) - 1, len(text))
        for length in range(longest, 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
