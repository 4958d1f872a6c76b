"""Much that waits is placed again in many steps, none of which takes long."""

from __future__ import annotations

import pytest
from cluster_world import World
from scenario import booted

from vertumnusd.control import scheduler
from vertumnusd.control.controller import Controller
from vertumnusd.control.scheduler import PLACED_AT_ONCE
from vertumnusd.messages import Cancel, Drain, Placed, Submit

WAITING = 1500


def crowded() -> Controller:
    """Two workers, and many requests that wait."""
    controller = booted(composition="2CP1", ranks=2, max_queue_tokens=10**9, max_queue_s=1e9)
    for n in range(WAITING):
        controller.step(1.0, Submit(f"r{n}", 0, 100, b"", 1))
    return controller


def placed(commands) -> list[str]:
    return [command.request for command in commands if isinstance(command, Placed)]


def test_a_drain_places_what_waits_a_few_at_a_time():
    controller = crowded()
    steps = [placed(controller.step(2.0, Drain(1, 0)))]
    while (deadline := controller.next_deadline()) is not None and deadline <= 2.0:
        steps.append(placed(controller.tick(2.0)))
    assert max(map(len, steps)) <= 2 * PLACED_AT_ONCE
    moved = [request for step in steps for request in step]
    assert len(moved) == len(set(moved)) > WAITING / 3
    view = controller.snapshot(3.0)
    waiting = {worker["name"]: worker["waiting"] for worker in view["workers"]}
    assert waiting["CP1[0]"] == 0
    assert waiting["CP1[1]"] >= WAITING - 4


def test_who_leaves_meanwhile_is_not_placed():
    controller = crowded()
    (last,) = [
        command.request
        for name in ("r1500", "r1501")
        for command in controller.step(1.0, Submit(name, 0, 100, b"", 1))
        if isinstance(command, Placed) and command.worker == "CP1[0]"
    ]
    moved = placed(controller.step(2.0, Drain(1, 0)))
    controller.step(2.0, Cancel(last))
    while controller.next_deadline() == 0.0:
        moved += placed(controller.tick(2.0))
    assert last not in moved
    assert len(moved) > WAITING / 3


class Crowd(World):
    def _expect_nothing(self, event):
        """Of a repeated event, unless there is something left to place."""
        if self.controller.next_deadline() != 0.0:
            super()._expect_nothing(event)

    def pass_time(self):
        while self.controller.next_deadline() == 0.0:
            for command in self.controller.tick(self.now):
                self.books.obey(command)
        super().pass_time()


@pytest.mark.parametrize("seed", range(100))
def test_random_scripts_with_one_placed_at_once(seed, monkeypatch):
    monkeypatch.setattr(scheduler, "PLACED_AT_ONCE", 1)
    world = Crowd(seed)
    world.play(100)
    world.drain()
