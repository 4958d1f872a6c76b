"""The heart of a node: deadlines pass when they come, and the event loop's lag is measured.

The beat looks after leads, ranks, metrics and the watchdog, a few times a second. The controller
says when it wants to be asked, and is asked then: with the beat alone, looks for bursts would be
late by a part of what a burst has to wait.
"""

from __future__ import annotations

import math

import trio

from vertumnusd.node.hub import Hub
from vertumnusd.node.metrics import Metrics
from vertumnusd.node.ranks import RankHost
from vertumnusd.node.systemd import Notifier

BEAT_S = 0.25
APART_S = 0.01  # the controller is asked no more often
STALLED_S = 1.0  # so late, what ranks said meanwhile is unread: no time to judge them


class Heart:
    def __init__(
        self, hub: Hub, ranks: RankHost, metrics: Metrics, notifier: Notifier, kv_blocks: int
    ) -> None:
        """``kv_blocks``: of all prefill ranks."""
        self._hub = hub
        self._ranks = ranks
        self._metrics = metrics
        self._notifier = notifier
        self._kv_blocks = kv_blocks

    async def beat(self) -> None:
        """Until cancelled."""
        interval_s = BEAT_S
        if self._notifier.watchdog_s:
            interval_s = min(interval_s, self._notifier.watchdog_s / 3)
        while True:
            lag_s = await _sleep_until(trio.current_time() + interval_s)
            self._metrics.loop_lag(lag_s)
            if lag_s < STALLED_S:
                self._hub.tick()
                self._ranks.tick()
            self._metrics.show(self._hub.snapshot(), self._kv_blocks)
            self._notifier.send(WATCHDOG=1)

    async def keep_deadlines(self) -> None:
        """Until cancelled. A deadline that comes to be within a beat waits for its end."""
        while True:
            now, deadline = trio.current_time(), self._hub.next_deadline()
            due = math.inf if deadline is None else max(deadline, now + APART_S)
            if due > now + BEAT_S:
                await trio.sleep(BEAT_S)
            elif await _sleep_until(due) < STALLED_S:
                self._hub.pass_deadline()


async def _sleep_until(due: float) -> float:
    """How late it became."""
    await trio.sleep_until(due)
    return trio.current_time() - due
