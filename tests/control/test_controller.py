"""What the controller shows, and its base line; its behaviour is in the scenarios."""

from __future__ import annotations

import json
from itertools import pairwise

from scenario import blocks, booted

from vertumnusd.messages import (
    BlocksChanged,
    Cancel,
    Dispatch,
    Done,
    HandedOff,
    PrefillDone,
    RankDown,
    Submit,
)


def test_the_snapshot_shows_workers_and_what_they_do():
    controller = booted(composition="1CP2/1CP1", ranks=3)
    for name in "abc":
        controller.step(1.0, Submit(name, 0, 300, b"", 1))
    view = controller.snapshot(2.0)
    assert (view["term"], view["epoch"], view["composition"]) == (1, 2, "1CP2/1CP1")
    # a: 1.5 s on two ranks; b: 3 s either way, and CP1 has the shorter queue; c: 3 s on CP2
    assert view["workers"] == [
        {
            "name": "CP2[0-1]",
            "state": "serving",
            "degree": 2,
            "ranks": [0, 1],
            "ranks_down": [],
            "epoch": 1,
            "queue_s": 3.0,
            "waiting": 0,
            "fetching": 0,
            "running": ["a", "c"],
            "blocked": "",
            "input_tokens": 0,
            "cached_tokens": 0,
        },
        {
            "name": "CP1[2]",
            "state": "serving",
            "degree": 1,
            "ranks": [2],
            "ranks_down": [],
            "epoch": 2,
            "queue_s": 3.0,
            "waiting": 0,
            "fetching": 0,
            "running": ["b"],
            "blocked": "",
            "input_tokens": 0,
            "cached_tokens": 0,
        },
    ]


def test_the_snapshot_says_how_long_and_why_requests_wait():
    controller = booted(composition="1CP1", cp_degrees=(1,), ranks=1, kv_blocks=20)
    for time, name in enumerate("abc"):
        controller.step(float(time), Submit(name, 0, 110, b"", 1))
    assert controller.snapshot(5.0)["waiting"] == {
        "requests": 2,
        "tokens": 220,
        "oldest_s": 4.0,
        "reasons": {"home full": 2},
    }


def test_the_totals_count_what_was_computed_and_what_was_cached():
    controller = booted()
    controller.step(1.0, Submit("a", 0, 300, b"", 1))
    controller.step(2.0, PrefillDone("a", 0, 120, 1.0))
    controller.step(3.0, Submit("aborted", 0, 300, b"", 1))
    controller.step(4.0, Cancel("aborted"))
    controller.step(4.0, PrefillDone("aborted", 0, 0, 0.1))
    totals = controller.snapshot(5.0)["totals"]
    assert (totals["input_tokens"], totals["cached_tokens"]) == (300, 120)


def test_missing_reports_are_counted():
    controller = booted()
    controller.step(1.0, BlocksChanged(0, 4, b"", b"", 0, 0, 100))
    assert controller.snapshot(1.0)["totals"]["reports_missing"] == 3


def test_the_snapshot_is_json():
    controller = booted()
    controller.step(1.0, Submit("a", 0, 300, b"", 50))
    view = controller.snapshot(2.0)
    assert json.loads(json.dumps(view)) == view


def test_it_is_idle_until_a_request_and_again_after_it():
    controller = booted()
    assert controller.idle()
    commands = controller.step(1.0, Submit("a", 0, 300, b"", 50))
    assert isinstance(commands[-1], Dispatch)
    for event in (PrefillDone("a", 0, 0, 1.0), HandedOff("a", 0), Done("a", 0)):
        assert not controller.idle()
        controller.step(2.0, event)
    assert controller.idle()


def test_predicted_times_leave_no_rest_in_the_queue():
    # Thousands of sums of times like 0.1 s would leave one, were they added up as floats.
    controller = booted(max_queue_tokens=10**9, max_queue_s=1e9)
    names = [f"r{n}" for n in range(2000)]
    for n, name in enumerate(names):
        controller.step(1.0, Submit(name, 0, 1 + n % 97, b"", 1))
    for name in names:
        for event in (PrefillDone(name, 0, 0, 1.0), HandedOff(name, 0), Done(name, 0)):
            controller.step(2.0, event)
    assert controller.idle()


def test_a_short_shared_prefix_does_not_draw_every_chain_into_one_home():
    """Two homes in the worker; all inputs share their first block of ten, and no more."""
    controller = booted(cp_degrees=(2,), ranks=2, composition="1CP2", kv_blocks=50)
    homes = []
    for n, path in enumerate(("abcdefghij", "aklmnopqrs", "atuvwxyzAB", "aCDEFGHIJK")):
        chain = b"".join(blocks(path))
        commands = controller.step(float(n), Submit(path, 0, 101, chain, 1))
        home = next(c.home_base for c in commands if isinstance(c, Dispatch))
        homes.append(home)
        stored = b"".join(p + b for p, b in pairwise([bytes(16), *blocks(path)]))
        version = homes.count(home)
        controller.step(float(n), BlocksChanged(home, version, stored, b"", 10 * version, 0, 0))
        controller.step(float(n), PrefillDone(path, 0, 0, 1.0))
        controller.step(float(n), Done(path, 0))
    assert homes == [0, 1, 0, 1]


def test_nothing_is_due_when_what_waits_needs_no_decode_rank():
    controller = booted(composition="1CP1", ranks=1, decode_ranks=1, unplaced_wait_s=10.0)
    controller.step(1.0, RankDown(1, "decode", "killed"))
    for name in "abcd":
        controller.step(2.0, Submit(name, 0, 100, b"", 1))
    assert controller.snapshot(2.0)["workers"][0]["waiting"]
    assert controller.next_deadline() is None
    controller.step(3.0, Submit("e", 0, 100, b"", 5))
    assert controller.next_deadline() == 11.0
