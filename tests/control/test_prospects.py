"""When policy "ours" is sure that other workers would serve the load sooner."""

from __future__ import annotations

from typing import Any

from scenario import PREFILL_TIME, boot, settings

from vertumnusd.control.controller import Controller
from vertumnusd.control.prefill_time import Coefficients, PrefillTime
from vertumnusd.messages import Converting, Decided, Done, Hold, Submit

# Ê is 10 ms a token at degree 1 and 5 ms at degree 2


def booted(
    composition: str,
    prefill_time: PrefillTime = PREFILL_TIME,
    kv_blocks: int = 1000,
    block_tokens: int = 1,
    **changed: Any,
) -> Controller:
    chosen = settings(
        composition=composition,
        policy="ours",
        kv_blocks=kv_blocks,
        block_tokens=block_tokens,
        max_queue_tokens=10**9,
        reconfiguration={"automatic": True, "window_s": 16, "dwell_s": 10, **changed},
    )
    controller = Controller(chosen, prefill_time)
    boot(controller, chosen)
    return controller


class Load:
    """Requests of one length at equal distances, each served at once, whatever it takes."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.now = 0.0
        self.begun: list[tuple[float, str, tuple[str, ...]]] = []
        self.decided: list[Decided] = []
        self._count = 0

    def play(self, seconds: float, every_s: float, tokens: int) -> None:
        for _ in range(round(seconds / every_s)):
            self.now = round(self.now + every_s, 3)
            self._count += 1
            name = str(self._count)
            self._see(self.controller.tick(self.now))
            if self.begun:
                return
            self._see(self.controller.step(self.now, Submit(name, 0, tokens, b"", 1)))
            self._see(self.controller.step(self.now, Done(name, 0)))

    def _see(self, commands: list[Any]) -> None:
        for command in commands:
            if isinstance(command, Converting):
                self.begun.append((self.now, command.kind, command.before))
            if isinstance(command, Decided):
                self.decided.append(command)


def test_few_requests_at_a_time_ask_for_a_merge_at_the_end_of_the_window():
    load = Load(booted("4CP1"))
    load.play(15.5, 0.5, 50)
    assert load.begun == []
    load.play(0.5, 0.5, 50)
    assert load.begun[0][1] == "merge"
    assert load.decided[-1].reason == "1CP2/2CP1 serves sooner"


def test_what_the_requests_would_have_waited_for_is_told():
    load = Load(booted("4CP1"))
    load.play(16.5, 0.5, 50)
    assert dict(load.decided[-1].predicted_ttft_s)["4CP1"] == 0.5
    assert dict(load.decided[-1].predicted_ttft_s)["2CP2"] == 0.25


def test_a_burst_asks_for_a_split_within_the_window():
    # 20 ms a request at every degree, so that two workers serve 100 of them a second and four 200
    load = Load(booted("2CP2", PrefillTime(Coefficients(0.02, 0, 0, 0, 0))))
    load.play(1.008, 0.006, 10)
    assert [(kind, before) for _, kind, before in load.begun] == [
        ("split", ("CP2[0-1]",)),
        ("split", ("CP2[2-3]",)),
    ]


def test_a_request_that_no_worker_has_room_for_makes_workers_merge():
    controller = booted("4CP1", kv_blocks=10, block_tokens=10)
    controller.step(0.5, Submit("long", 0, 190, b"", 1))
    load = Load(controller)
    load.play(2, 0.5, 50)
    assert load.begun == [(1.0, "merge", ("CP1[0]", "CP1[1]"))]


def test_no_split_takes_the_last_worker_with_room_for_what_came_before():
    prefill_time = PrefillTime(Coefficients(0.02, 0, 0, 0, 0))
    load = Load(booted("2CP2", prefill_time, kv_blocks=10, block_tokens=10))
    load.play(1.0, 1.0, 190)
    load.play(2, 0.006, 10)
    assert [before for _, _, before in load.begun] == [("CP2[0-1]",)]


def test_while_held_nothing_is_begun():
    controller = booted("4CP1")
    controller.step(0.0, Hold(100.0))
    load = Load(controller)
    load.play(17, 0.5, 50)
    assert load.begun == []
    assert (load.decided[-1].verdict, load.decided[-1].signal) == ("stay", "merge")


def test_too_few_requests_prove_nothing():
    load = Load(booted("4CP1", min_requests=100))
    load.play(34, 0.5, 50)
    assert load.begun == []
    assert load.decided[-1].reason == "only 63 requests"
