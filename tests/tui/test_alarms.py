"""What is wrong is said first, with since when and why; and nothing is said of what is well."""

from typing import Any

import pytest
from vertumnus_tui.alarms import alarms
from vertumnus_tui.model import Model
from vertumnus_tui.panel import Panel
from vertumnus_tui.status import Live, Lost

from vertumnusd.messages import FeedSnapshot

T = 100.0
SERVING = {"name": "CP2[0-1]", "degree": 2, "ranks": [0, 1], "state": "serving"}
HALF_DOWN = {**SERVING, "state": "withdrawn", "ranks_down": [0, 1]}
OTHER = {**SERVING, "name": "CP2[2-3]", "ranks": [2, 3]}
DOWN = {"type": "RankDown", "kind": "prefill", "rank": 1, "also": [0], "reason": "SIGKILL"}
DRAIN = {"type": "DrainWorker", "worker": "CP2[2-3]", "deadline_s": 0.0}
SLOW = {
    **{"operation": 1, "kind": "split", "before": ["CP2[0-1]"], "after": ["CP1[0]", "CP1[1]"]},
    **{"phase": "drain", "drain_s": 25.0, "predicted_drain_s": 2.0},
}
BUSY = {**SERVING, "running": ["r7"]}
OVERLOAD = {"requests": 12, "oldest_s": 45.0, "reasons": {"decode pool full": 12}}


def seen(*events: dict[str, Any], status: Any = None, **cluster: Any) -> list[tuple[str, str]]:
    picture = {"composition": "2CP2", "workers": [SERVING, OTHER], **cluster}
    model = Model()
    model.apply(FeedSnapshot(1, T, 0.0, picture, list(events)))
    return [tuple(alarm) for alarm in alarms(model, status or Live())]


def test_of_a_cluster_that_is_well_nothing_is_said():
    assert seen() == []
    model = Model()
    model.apply(FeedSnapshot(1, T, 0.0, {"composition": "2CP2", "workers": [SERVING, OTHER]}))
    panel = Panel(model)
    assert "+ all well: 4 ranks up, 2 of 2 workers serve" in panel.text(80, 24).splitlines()[2]


@pytest.mark.parametrize(
    ("events", "cluster", "style", "words"),
    [
        (
            [{"t": 88.0, **DOWN}],
            {"workers": [HALF_DOWN, OTHER]},
            "bad",
            "prefill ranks 0 1 down for 12s: SIGKILL",
        ),
        ([], {"workers": [HALF_DOWN, OTHER]}, "bad", "prefill ranks 0 1 down"),
        ([], {"decode": [{"rank": 4, "up": False}]}, "bad", "decode rank 4 down"),
        ([], {"unready": "starting ranks"}, "bad", "takes no requests: starting ranks"),
        ([], {"workers": [{**SERVING, "state": "draining"}]}, "bad", "no worker serves"),
        (
            [{"t": 95.0, "type": "Reject", "request": "r", "reason": "the queue is full"}] * 3,
            {},
            "bad",
            "3 requests refused in the last 30s: the queue is full",
        ),
        (
            [{"t": 20.0, **DRAIN}],
            {"drains": [{"worker": "CP2[2-3]"}], "workers": [SERVING, {**OTHER, "running": ["r"]}]},
            "warn",
            "CP2[2-3] drains for 1:20, still runs r",
        ),
        (
            [{"t": 20.0, **DRAIN}],
            {"drains": [{"worker": "CP2[2-3]", "drained": True}]},
            "warn",
            "CP2[2-3] is out of service, drained by hand, asked for 1:20 ago",
        ),
        (
            [],
            {"operations": [SLOW], "workers": [BUSY, OTHER]},
            "warn",
            "split of CP2[0-1] drains for 25s, 2.00 s were predicted, still runs r7",
        ),
        (
            [],
            {"waiting": OVERLOAD},
            "warn",
            "12 requests wait, the oldest for 45s (12 for: decode pool full)",
        ),
        (
            [],
            {"decision": {"demand_s": 30.0}, "adaptation": {"capacity_s": 20.0}},
            "warn",
            "demand is 150% of what the workers can compute: queues grow",
        ),
        (
            [],
            {"adaptation": {"held_until": T + 600, "held_by": "ann on ops-1"}},
            "warn",
            "held by ann on ops-1: nothing is split, merged or copied by itself for 10:00",
        ),
    ],
)
def test_what_is_wrong_is_said(events, cluster, style, words):
    assert seen(*events, **cluster) == [(style, words)]


@pytest.mark.parametrize(
    ("events", "cluster"),
    [
        ([{"t": 95.0, **DRAIN}], {"drains": [{"worker": "CP2[2-3]"}]}),
        ([], {"operations": [{**SLOW, "drain_s": 4.0}]}),
        ([], {"operations": [{**SLOW, "predicted_drain_s": 20.0}]}),
        ([], {"waiting": {**OVERLOAD, "oldest_s": 3.0}}),
        ([{"t": 60.0, "type": "Reject", "request": "r", "reason": "the queue is full"}], {}),
    ],
)
def test_what_is_usual_is_not_said(events, cluster):
    assert seen(*events, **cluster) == []


def test_the_gravest_comes_first_and_is_seen_on_every_page():
    lost = Lost("no node at its socket", 4.0)
    held = {"held_until": T + 600}
    found = seen(status=lost, adaptation=held)
    assert [style for style, _ in found] == ["bad", "warn"]
    model = Model()
    model.apply(FeedSnapshot(1, T, 0.0, {"workers": [SERVING], "adaptation": held}))
    panel = Panel(model)
    panel.status = lost
    assert "held" in panel.text(80, 24).splitlines()[3]
    panel.go("events")
    line = panel.text(80, 24).splitlines()[2]
    assert "no node at its socket" in line
    assert line.endswith("and 1 more")


def test_ranks_that_came_back_are_not_told_any_more():
    up = {"t": 90.0, "type": "RankUp", "kind": "prefill", "rank": 1}
    assert seen({"t": 88.0, **DOWN}, up, workers=[SERVING, OTHER]) == []
