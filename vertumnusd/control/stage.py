"""The stages of a request; ``request.py`` draws them."""

from __future__ import annotations

from enum import Enum


class Stage(Enum):
    UNPLACED = "unplaced"
    FETCHING = "fetching"
    WAITING = "waiting"
    DISPATCHED = "dispatched"
    PREFILLED = "prefilled"
    HANDED_OFF = "handed off"

    def __init__(self, value: str) -> None:
        self.queued = value in ("unplaced", "fetching", "waiting")
