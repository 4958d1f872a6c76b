"""What is begun at a window's end, and with whom; the whole course is in follow_the_load.txt."""

from __future__ import annotations

from typing import Any

from scenario import PREFILL_TIME, boot, settings

from vertumnusd.control.controller import Controller
from vertumnusd.messages import (
    Cancel,
    ControlCommand,
    Converting,
    Decided,
    DrainWorker,
    Hold,
    PrefillDone,
    Seated,
    Submit,
)

PROMPT = {"window_s": 10, "hold_windows": 1, "min_requests": 1, "confidence": 1e-9, "dwell_s": 0}


def booted(composition: str, policy: str = "paper", **changed: Any) -> Controller:
    """Four ranks, degrees 1 and 2, κ = 8 s for each worker."""
    chosen = settings(
        composition=composition,
        policy=policy,
        kv_blocks=1000,
        max_queue_tokens=10**9,
        reconfiguration={"automatic": True, **PROMPT, **changed},
    )
    controller = Controller(chosen, PREFILL_TIME)
    boot(controller, chosen)
    return controller


def submit(controller: Controller, now: float, name: str, tokens: int) -> None:
    controller.step(now, Submit(name, 0, tokens, b"", 1))


def decided(commands: list[ControlCommand]) -> Decided:
    return next(c for c in commands if isinstance(c, Decided))


def begun(commands: list[ControlCommand]) -> list[tuple[str, ...]]:
    return [c.before for c in commands if isinstance(c, Converting)]


def test_windows_begin_with_the_seat():
    controller = Controller(settings(reconfiguration={"automatic": True}), PREFILL_TIME)
    assert controller.next_deadline() is None
    controller.step(7.0, Seated(1))
    assert controller.next_deadline() == 27.0


def test_without_automation_there_are_no_windows():
    controller = booted("2CP2", automatic=False)
    assert controller.next_deadline() is None
    assert controller.tick(1000.0) == []


def test_the_worker_with_the_shortest_drain_is_split():
    controller = booted("2CP2", max_operations=1)
    submit(controller, 1.0, "a", 3000)  # 15 s on either
    submit(controller, 1.0, "b", 1000)  # 5 s
    assert begun(controller.tick(10.0)) == [("CP2[2-3]",)]


def test_of_equal_drains_the_one_that_redirects_least_is_split():
    controller = booted("2CP2", max_operations=1)
    for n in range(3):
        submit(controller, 1.0, f"a{n}", 1000)  # CP2[0-1], CP2[2-3], CP2[0-1] one ahead
    submit(controller, 1.0, "b0", 1000)
    submit(controller, 1.0, "b1", 1000)  # the first one to wait, at CP2[0-1]
    assert begun(controller.tick(10.0)) == [("CP2[2-3]",)]


def test_as_many_operations_as_the_demand_asks_for():
    # D = 30 s: above 0.9 of 2·8 s, and with one split of 3·8 s
    controller = booted("2CP2", max_operations=2)
    submit(controller, 1.0, "a", 3000)
    submit(controller, 1.0, "b", 3000)
    assert begun(controller.tick(10.0)) == [("CP2[0-1]",), ("CP2[2-3]",)]


def test_no_more_operations_than_the_demand_asks_for():
    # D = 20 s: above 14.4 s, and with one split not above 21.6 s
    controller = booted("2CP2", max_operations=2)
    submit(controller, 1.0, "a", 2000)
    submit(controller, 1.0, "b", 2000)
    assert begun(controller.tick(10.0)) == [("CP2[0-1]",)]


def test_a_merge_that_would_lack_the_capacity_is_not_begun():
    # D = 15 s, below 0.8 of 32 s, and of 24 s. Two merges would leave 0.95·0.9·16 = 13.68 s
    controller = booted("4CP1", max_operations=2, merge_below=0.8)
    submit(controller, 1.0, "a", 1500)
    commands = controller.tick(10.0)
    assert begun(commands) == [("CP1[2]", "CP1[3]")]


def test_with_nothing_left_to_split_the_decision_says_so():
    controller = booted("4CP1")
    for n in range(4):
        submit(controller, 1.0, f"r{n}", 1000)
    decision = decided(controller.tick(10.0))
    assert (decision.verdict, decision.signal) == ("stay", "split")
    assert decision.reason == "demand above the upper threshold; no split is possible"


def test_after_an_operation_windows_begin_anew_and_nothing_is_begun_for_a_while():
    controller = booted("2CP2", dwell_s=25, drain_deadline_s=1, max_operations=1)
    ends = []
    for now in range(60):
        commands = controller.tick(float(now))  # a drain is called off after 1 s
        if any(isinstance(c, Decided) for c in commands):
            ends.append((now, bool(begun(commands))))
        if now % 5 == 1:
            submit(controller, float(now), f"r{now}", 3000)
    # called off at 11, where the next window begins; the dwell is over at 36
    assert ends == [(10, True), (21, False), (31, False), (41, True), (52, False)]


def test_while_held_windows_are_judged_and_nothing_is_begun():
    controller = booted("2CP2")
    controller.step(0.0, Hold(15.0))
    for n, now in enumerate((1.0, 11.0)):
        submit(controller, now, f"a{n}", 3000)
        submit(controller, now, f"b{n}", 3000)
        commands = controller.tick(now + 9)
        assert decided(commands).signal == "split"
        assert bool(begun(commands)) == (n == 1)


def test_a_retried_request_is_not_counted_twice():
    controller = booted("2CP2")
    submit(controller, 1.0, "a", 1000)
    controller.step(1.0, Cancel("a"))
    controller.step(1.0, PrefillDone("a", 0, 0, 0.0))
    controller.step(1.0, Submit("b", 1, 1000, b"", 1))
    assert decided(controller.tick(10.0)).requests == 1


def test_the_last_decision_is_shown():
    controller = booted("2CP2")
    assert controller.snapshot(0.0)["decision"] is None
    submit(controller, 1.0, "a", 2000)
    controller.tick(10.0)
    shown = controller.snapshot(10.0)["decision"]
    assert (shown["window"], shown["demand_s"], shown["capacity_s"]) == (1, 10.0, 16.0)


def test_a_drain_is_told_its_patience_and_deadline():
    controller = booted("2CP2", patience_s=3, drain_deadline_s=7)
    submit(controller, 1.0, "a", 2000)
    submit(controller, 1.0, "b", 2000)
    drain = next(c for c in controller.tick(10.0) if isinstance(c, DrainWorker))
    assert (drain.patience_s, drain.deadline_s) == (3.0, 7.0)
    assert controller.next_deadline() == 17.0


def test_demand_can_decide_where_predicted_times_mean_little():
    for judge_by, predicts in (("times", True), ("demand", False)):
        controller = booted("2CP2", policy="ours", judge_by=judge_by)
        for name in "abcdefgh":
            submit(controller, 1.0, name, 2000)
        decision = decided(controller.tick(10.0))
        assert bool(decision.predicted_ttft_s) is predicts
