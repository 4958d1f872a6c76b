"""Deadlines of the controller pass when they come; those of ranks only if the loop is not late."""

import trio
import trio.testing

from vertumnusd.node.heart import BEAT_S, Heart
from vertumnusd.node.metrics import Metrics


class Parts:
    """Hub, ranks and notifier in one: notes when it was asked for what."""

    watchdog_s = 0.0

    def __init__(self, *deadlines_s: float) -> None:
        self._deadlines = [trio.current_time() + s for s in deadlines_s]
        self._began = trio.current_time()
        self.passed_s: list[float] = []
        self.ticks = 0

    def next_deadline(self) -> float | None:
        return self._deadlines[0] if self._deadlines else None

    def pass_deadline(self) -> None:
        assert self._deadlines.pop(0) <= trio.current_time()
        self.passed_s.append(round(trio.current_time() - self._began, 6))

    def tick(self) -> None:
        self.ticks += 1

    def snapshot(self) -> dict:
        return {"term": 1, "epoch": 1, "workers": [], "requests": [], "homes": []}

    def send(self, **said: object) -> None:
        pass


def heart(parts: Parts) -> Heart:
    return Heart(parts, parts, Metrics(), parts, 1)


async def test_deadlines_pass_when_they_come(autojump_clock):
    parts = Parts(0.1, 0.3, 0.31, 7.77)
    with trio.move_on_after(10.0):
        await heart(parts).keep_deadlines()
    assert parts.passed_s == [0.1, 0.3, 0.31, 7.77]


async def test_deadlines_at_once_do_not_keep_the_loop_busy(autojump_clock):
    parts = Parts(*[0.0] * 1000)
    with trio.move_on_after(1.0):
        await heart(parts).keep_deadlines()
    assert 50 <= len(parts.passed_s) <= 100


async def test_a_beat_looks_after_leads_and_ranks(autojump_clock):
    parts = Parts()
    with trio.move_on_after(10 * BEAT_S + 0.01):
        await heart(parts).beat()
    assert parts.ticks == 2 * 10


async def test_a_stalled_loop_judges_nobody(mock_clock):
    """What ranks said meanwhile is read first."""
    parts = Parts()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(heart(parts).beat)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(BEAT_S + 1.0)
        await trio.testing.wait_all_tasks_blocked()
        assert parts.ticks == 0
        mock_clock.jump(BEAT_S)
        await trio.testing.wait_all_tasks_blocked()
        assert parts.ticks == 2
        nursery.cancel_scope.cancel()


async def test_a_stalled_loop_lets_no_deadline_pass(mock_clock):
    """Not before what happened meanwhile is known."""
    parts = Parts(0.1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(heart(parts).keep_deadlines)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(0.1 + 1.0)
        await trio.testing.wait_all_tasks_blocked()
        assert parts.passed_s == []
        mock_clock.jump(BEAT_S)
        await trio.testing.wait_all_tasks_blocked()
        assert len(parts.passed_s) == 1
        nursery.cancel_scope.cancel()
