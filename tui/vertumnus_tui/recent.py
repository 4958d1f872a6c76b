"""What events told that no picture of the cluster shows: when something began, and why."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

LATELY_S = 30.0
REFUSALS_KEPT = 10_000


class Down(NamedTuple):
    t: float
    reason: str


class Recent:
    """Fed with every event, in order; what is missing in one is left out."""

    def __init__(self) -> None:
        self.down: dict[tuple[str, int], Down] = {}  # kind and rank
        self.draining: dict[str, float] = {}  # worker → since when
        self._refusals: deque[tuple[float, str]] = deque(maxlen=REFUSALS_KEPT)

    def note(self, t: float, kind: str, event: dict[str, Any]) -> None:
        match kind:
            case "RankDown":
                for rank in (event.get("rank"), *event.get("also", ())):
                    self.down[str(event.get("kind")), rank] = Down(t, str(event.get("reason", "")))
            case "RankUp":
                self.down.pop((str(event.get("kind")), event.get("rank", -1)), None)
            case "DrainWorker":
                self.draining[str(event.get("worker"))] = t
            case "Exposed" | "Withdrawn" | "Resume":
                self.draining.pop(str(event.get("worker")), None)
            case "Reject":
                self._refusals.append((t, str(event.get("reason", ""))))

    def refusals(self, now: float) -> list[str]:
        """Reasons, of the last ``LATELY_S``."""
        while self._refusals and self._refusals[0][0] < now - LATELY_S:
            self._refusals.popleft()
        return [reason for _, reason in self._refusals]
