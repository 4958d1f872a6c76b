"""Whether the controller may begin things by itself, or an operator has asked it not to.

    free ──Hold──► held until a time ──that time, or Hold for 0 s──► free

Each change is told with a ``Held``, so that a hold which somebody forgot is seen to end, too.
"""

from __future__ import annotations

from typing import Any

from vertumnusd.messages import ControlCommand, Held, Hold


class Holding:
    """What is begun by hand goes on all the same."""

    def __init__(self) -> None:
        self._until: float | None = None
        self._by = ""

    def hold(self, now: float, order: Hold) -> list[ControlCommand]:
        """A later order takes the place of an earlier one."""
        until = now + order.hold_s if order.hold_s > 0 else None
        if until == self._until:
            return []
        self._until, self._by = until, order.by
        return [Held(max(0.0, order.hold_s), order.by)]

    def is_on(self, now: float) -> bool:
        return self._until is not None and now < self._until

    def next_deadline(self) -> float | None:
        return self._until

    def tick(self, now: float) -> list[ControlCommand]:
        if self._until is None or now < self._until:
            return []
        self._until, self._by = None, ""
        return [Held(0.0)]

    def snapshot(self, now: float) -> dict[str, Any]:
        on = self.is_on(now)
        return {"held_until": self._until if on else None, "held_by": self._by if on else ""}
