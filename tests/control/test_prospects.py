"""When policy "ours" is sure that other workers would serve the load sooner."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from scenario import PREFILL_TIME, boot, settings

from vertumnusd.control.candidates import Candidate
from vertumnusd.control.controller import Controller
from vertumnusd.control.fleet import parse_composition
from vertumnusd.control.prefill_time import Coefficients, PrefillTime
from vertumnusd.control.prospects import (
    EXPECTED_MAX,
    PLAYED_AT_ONCE,
    REQUESTS_MAX,
    Comparison,
)
from vertumnusd.control.what_if import Arrived
from vertumnusd.messages import (
    Adopted,
    AdoptWorker,
    ControlEvent,
    Converting,
    Decided,
    Done,
    Drained,
    DrainWorker,
    Hold,
    Park,
    Parked,
    RankDown,
    Submit,
)
from vertumnusd.simulate.policies import compositions

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
        self._commands: list[Any] = []

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

    def conclude(self) -> None:
        """What was begun is over: workers drained, ranks park and adopt, and all of them serve."""
        while self._commands:
            match self._commands.pop(0):
                case DrainWorker() as drain:
                    worker = drain.degree, drain.base
                    self._happen(Drained(1, drain.operation, *worker))
                case Park() as park:
                    for rank in range(park.base, park.base + park.degree):
                        self._happen(Parked(rank, 1, park.epoch))
                case AdoptWorker() as adopt:
                    for rank in range(adopt.base, adopt.base + adopt.degree):
                        self._happen(Adopted(rank, 1, adopt.epoch, adopt.degree))
        self.begun.clear()

    def _happen(self, event: ControlEvent) -> None:
        self._see(self.controller.step(self.now, event))

    def _see(self, commands: list[Any]) -> None:
        self._commands += commands
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


@pytest.mark.parametrize("least", [12, EXPECTED_MAX + 1, REQUESTS_MAX + 1])
def test_as_many_requests_as_are_asked_for_prove_something(least):
    load = Load(booted("4CP1", min_requests=least))
    load.play(16.5, 0.02, 2)
    assert load.begun[0][1] == "merge"


def test_documents_that_come_rarely_ask_for_a_merge_in_the_end():
    """Two or three a window: never ``min_requests`` of them in ``hold_windows`` windows."""
    load = Load(booted("4CP1"))
    load.play(150, 7, 50)
    assert [kind for _, kind, _ in load.begun] == ["merge"]


def test_a_split_does_not_wait_for_what_a_merge_would():
    load = Load(booted("4CP1", PrefillTime(Coefficients(0.02, 0, 0, 0.01, 0)), dwell_s=1e6))
    load.play(16, 0.5, 50)
    assert load.begun[0][1] == "merge"
    load.conclude()
    load.play(4, 0.004, 1)
    assert load.begun[0][1] == "split"


def test_a_merge_waits_for_a_while_after_a_split():
    load = Load(booted("2CP2", PrefillTime(Coefficients(0.02, 0, 0, 0.01, 0)), dwell_s=1e6))
    load.play(4, 0.004, 1)
    assert load.begun[0][1] == "split"
    load.conclude()
    load.play(32.5, 0.5, 50)
    assert load.begun == []
    assert load.decided[-1].signal == "merge"
    assert load.decided[-1].reason.endswith("; the last operation was a moment ago")


@pytest.mark.parametrize(("waiting", "wanted"), [(0, "merge"), (60, "stay")])
def test_what_waits_now_speaks_for_more_workers(waiting, wanted):
    """Few long requests a window ask for a merge, unless more wait since the window before."""
    controller = booted("4CP1", PrefillTime(Coefficients(0.5, 0, 0, 0.01, 0)))
    controller.step(0.0, Hold(100.0))  # so that the second window sees the same workers
    for n in range(waiting):
        controller.step(0.0, Submit(f"w{n}", 0, 100, b"", 1))
    load = Load(controller)
    load.play(32.5, 0.5, 50)
    assert [decision.window for decision in load.decided] == [1, 2]
    assert load.decided[-1].signal == wanted


# --- a judgement in pieces


def crowded() -> Controller:
    """Forty ranks that many requests came to; the window is over at 16."""
    chosen = settings(
        **{"cp_degrees": (1, 2, 4), "ranks": 40, "composition": "5CP4/10CP2", "policy": "ours"},
        **{"kv_blocks": 1000, "block_tokens": 1, "max_queue_tokens": 10**9},
        reconfiguration={"automatic": True, "window_s": 16, "dwell_s": 10},
    )
    controller = Controller(chosen, PrefillTime(Coefficients(0.05, 0, 0, 0.005, 0)))
    boot(controller, chosen)
    for n in range(700):
        controller.step(15.0 + n / 700, Submit(str(n), 0, 50, b"", 1))
    return controller


def comparison() -> Comparison:
    """As many requests as there may be, and every composition of eight ranks beside 8CP1."""
    chosen = settings(cp_degrees=(1, 2, 4), ranks=8, composition="8CP1", policy="ours")
    random = Random(1)
    at_s = sorted(random.uniform(0, 300) for _ in range(REQUESTS_MAX))
    requests = [Arrived(each_s, random.randint(1, 300), 0) for each_s in at_s]
    candidates = [
        Candidate("merge", (), parse_composition(name, (1, 2, 4), 8))
        for name in compositions((1, 2, 4), 8)
    ]
    workers = list(chosen.workers())
    return Comparison(chosen, PREFILL_TIME, [], requests, workers, candidates)


def test_a_judgement_is_made_in_pieces_that_nobody_waits_long_for():
    compared, pieces, played = comparison(), [], 0
    prospect = None
    while prospect is None:
        prospect = compared.go_on()
        pieces.append(compared.played - played)
        played = compared.played
    assert len(pieces) > 5
    assert max(pieces) <= PLAYED_AT_ONCE


def test_in_pieces_or_not_a_judgement_is_the_same():
    compared, in_pieces = comparison(), None
    while in_pieces is None:
        in_pieces = compared.go_on()
    assert in_pieces == comparison().go_on(10**9)
    assert in_pieces.best is not None


def test_nothing_is_begun_if_the_composition_changes_while_it_is_judged():
    controller = crowded()
    assert not controller.tick(16.0)
    assert controller.next_deadline() == 0.0  # it goes on at once
    controller.step(16.0, RankDown(0, "prefill", "killed"))
    (decision,) = [each for each in controller.tick(16.0) if isinstance(each, Decided)]
    assert (decision.verdict, decision.reason) == ("stay", "the composition is changing")
