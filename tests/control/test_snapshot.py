"""What people get to see of the controller, besides what test_controller.py checks of it."""

from __future__ import annotations

import msgspec
import pytest
from scenario import blocks, booted, event, name_of

from vertumnusd.control.controller import Controller
from vertumnusd.control.hot_prefixes import prefix_name
from vertumnusd.control.snapshot import show_event
from vertumnusd.messages import (
    Abort,
    Done,
    Drained,
    HandedOff,
    Hold,
    Parked,
    PrefillDone,
    RankDown,
    Reclaim,
    Replicate,
    Split,
    Submit,
)


def stored(controller: Controller, rank: int, path: str) -> None:
    counts = [f"cached_blocks={len(path)}", "free_blocks=90"]
    parts = [f"rank={rank}", "version=1", f"stored={path}", *counts]
    controller.step(0.5, event("BlocksChanged", parts))


def run(controller: Controller, name: str, letters: str, tokens: int = 90) -> None:
    controller.step(1.0, Submit(name, 0, tokens, b"".join(blocks(letters)), 1))
    for done in (PrefillDone(name, 0, 0, 1.0), HandedOff(name, 0), Done(name, 0)):
        controller.step(2.0, done)


def test_a_request_is_shown_with_its_place_and_its_age():
    controller = booted(composition="1CP1", cp_degrees=(1,), ranks=1)
    controller.step(3.0, Submit("a", 0, 110, b"", 1))
    (shown,) = controller.snapshot(5.0)["requests"]
    assert (shown["phase"], shown["worker"], shown["accepted_at"]) == ("prefilling", "CP1[0]", 3.0)


def test_a_worker_tells_what_its_prefills_found_in_the_cache():
    controller = booted(composition="1CP1", cp_degrees=(1,), ranks=1)
    controller.step(1.0, Submit("a", 0, 300, b"", 1))
    controller.step(2.0, PrefillDone("a", 0, 120, 1.0))
    (worker,) = controller.snapshot(3.0)["workers"]
    assert (worker["input_tokens"], worker["cached_tokens"]) == (300, 120)


def test_ranks_that_are_down_are_named():
    controller = booted(composition="2CP2", ranks=4)
    controller.step(1.0, RankDown(1, "prefill", "killed"))
    assert [w["ranks_down"] for w in controller.snapshot(1.0)["workers"]] == [[1], []]


def test_an_operation_shows_how_long_each_phase_takes():
    controller = booted(composition="1CP2", ranks=2)
    controller.step(10.0, Split(2, 0))
    assert operation(controller, 13.0) == ("drain", {"drain_s": 3.0})
    controller.step(14.0, Drained(1, 1, 2, 0))
    assert operation(controller, 15.0) == ("park", {"drain_s": 4.0, "park_s": 1.0})
    for rank in (0, 1):
        controller.step(16.0, Parked(rank, 1, 2))
    times = {"drain_s": 4.0, "park_s": 2.0, "adopt_s": 3.0}
    assert operation(controller, 19.0) == ("adopt", times)


def operation(controller: Controller, now: float) -> tuple[str, dict[str, float]]:
    (shown,) = controller.snapshot(now)["operations"]
    phases = ("drain_s", "park_s", "adopt_s")
    return shown["phase"], {key: shown[key] for key in phases if key in shown}


def test_the_window_so_far_and_what_would_be_next():
    prompt = {"automatic": True, "window_s": 10, "hold_windows": 3, "min_requests": 1}
    controller = booted(composition="1CP2", ranks=2, reconfiguration=prompt)
    for n in range(10):
        controller.step(1.0, Submit(str(n), 0, 300, b"", 1))  # 1.5 s each
    controller.step(1.0, Hold(100.0))
    seen = controller.snapshot(5.0)["adaptation"]
    assert (seen["requests"], seen["demand_s"], seen["upper_s"]) == (10, 15.0, pytest.approx(7.2))
    assert (seen["held_until"], seen["next"]) == (101.0, None)
    controller.tick(10.0)
    seen = controller.snapshot(11.0)["adaptation"]
    assert seen["demand_s"] == 0.0
    assert seen["next"] == {"kind": "split", "before": ["CP2[0-1]"], "after": ["CP1[0]", "CP1[1]"]}


def test_hot_prefixes_are_the_ends_of_what_is_used_alike():
    controller = booted(composition="2CP1", cp_degrees=(1,), ranks=2, replication={"enabled": True})
    stored(controller, 0, "abc")
    for name in ("one", "two"):
        run(controller, name, "abcd")
    run(controller, "three", "abxy")
    hot = controller.snapshot(3.0)["hot_prefixes"]
    assert [(h["prefix"], h["tokens"], h["access"]) for h in hot] == [
        (prefix_name(name_of("ab")), 20, 3.0),
        (prefix_name(name_of("abc")), 30, 2.0),
    ]
    assert hot[0]["homes"] == [0]
    assert hot[0]["replicas"] == [{"degree": 1, "workers": 1}]


def test_hot_prefixes_are_gone_through_now_and_then_only():
    controller = booted(composition="2CP1", cp_degrees=(1,), ranks=2, replication={"enabled": True})
    stored(controller, 0, "abc")
    assert controller.snapshot(1.0)["hot_prefixes"] == []
    run(controller, "one", "abcd")
    assert controller.snapshot(2.0)["hot_prefixes"] == []
    assert len(controller.snapshot(6.0)["hot_prefixes"]) == 1


def test_events_are_shown_without_hashes():
    command = Replicate(1, 7, "intra", b"".join(blocks("abcd")), 1, 0, 2, 30.0, 1, 1)
    shown = show_event(command)
    assert shown is not None
    assert (shown["type"], shown["blocks"], shown["prefix"]) == (
        "Replicate",
        3,
        prefix_name(name_of("abcd")),
    )
    assert "chain" not in shown
    reclaimed = show_event(Reclaim(1, 2, name_of("ab") + name_of("a"), (1,)))
    assert reclaimed is not None
    assert (reclaimed["prefix"], reclaimed["blocks"]) == (prefix_name(name_of("a")), 2)
    msgspec.json.encode([shown, reclaimed])


def test_what_no_operator_cares_for_is_not_shown():
    assert show_event(Abort("a", "CP1[0]")) is None
