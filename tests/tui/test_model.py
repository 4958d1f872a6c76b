"""Frames go in, and the model knows what is, what happened and what was."""

import time

import msgspec
import pytest
from screens import player_at
from vertumnus_tui.describe import describe
from vertumnus_tui.model import EVENTS_KEPT, FeedError, Model

from vertumnusd.messages import EntryChanges, FeedDelta, FeedSnapshot

WORKER = {"name": "CP2[0-1]", "degree": 2, "ranks": [0, 1], "state": "serving", "queue_s": 1.0}
CLUSTER = {
    "term": 1,
    "epoch": 1,
    "composition": "1CP2",
    "workers": [WORKER],
    "requests": [],
    "totals": {"submitted": 0},
}
PLACED = {
    **{"t": 11.0, "type": "Placed", "term": 1, "epoch": 1, "request": "r1", "worker": "CP2[0-1]"},
    **{"degree": 2, "preferred_degree": 2, "input_tokens": 100, "cached_tokens": 20},
    **{"queue_s": 0.25, "service_s": 0.5, "gpu_price_s": 0.0, "cost_s": 0.75},
}


def fed(*deltas: FeedDelta) -> Model:
    model = Model()
    model.apply(FeedSnapshot(7, 10.0, 1_000_010.0, CLUSTER))
    for delta in deltas:
        model.apply(delta)
    return model


def test_a_delta_changes_what_it_names():
    worker = {**WORKER, "queue_s": 2.5}
    other = {**WORKER, "name": "CP2[2-3]", "ranks": [2, 3]}
    put = {"workers": EntryChanges(put=[worker, other])}
    model = fed(FeedDelta(8, 10.5, {"epoch": 2}, put))
    assert (model.cluster.epoch, model.cluster.term) == (2, 1)
    assert [(w.name, w.queue_s) for w in model.cluster.workers] == [
        ("CP2[0-1]", 2.5),
        ("CP2[2-3]", 1.0),
    ]
    model.apply(FeedDelta(9, 11.0, {}, {"workers": EntryChanges(drop=["CP2[0-1]"])}))
    assert [w.name for w in model.cluster.workers] == ["CP2[2-3]"]


def test_workers_stand_in_the_order_of_their_ranks():
    halves = [{**WORKER, "name": f"CP1[{n}]", "degree": 1, "ranks": [n]} for n in (1, 0)]
    put = {"workers": EntryChanges(put=halves, drop=["CP2[0-1]"])}
    model = fed(FeedDelta(8, 10.5, {}, put))
    assert [w.name for w in model.cluster.workers] == ["CP1[0]", "CP1[1]"]


def test_a_node_that_was_restarted_has_another_clock():
    model = fed(FeedDelta(8, 11.0, {"totals": {"submitted": 500}}, {}, [PLACED]))
    was = model.clock(model.events[-1].t)
    again = FeedSnapshot(1, 5_000.0, 1_000_031.0, CLUSTER, [{**PLACED, "t": 5_000.0}])
    model.apply(again)
    assert [model.clock(event.t) for event in model.events] == [was, was, model.clock(5_000.0)]
    assert model.events[1].about.label == "restarted"
    model.apply(FeedDelta(2, 5_002.0, {"totals": {"submitted": 4}}))
    samples = model.history.last(60.0)
    assert [sample.t for sample in samples] == [4_979.0, 4_980.0, 5_000.0, 5_002.0]
    assert [sample.request_rate for sample in samples] == [None, 500.0, None, 2.0]


def test_events_that_a_new_snapshot_repeats_are_taken_once():
    model = fed(FeedDelta(8, 11.0, {}, {}, [PLACED]))
    later = {**PLACED, "t": 12.0}
    model.apply(FeedSnapshot(20, 13.0, 1_000_013.0, CLUSTER, [PLACED, later]))
    assert [event.t for event in model.events] == [11.0, 12.0]


def test_a_gap_asks_for_a_new_snapshot():
    model = fed()
    with pytest.raises(FeedError, match="follows"):
        model.apply(FeedDelta(9, 11.0))
    model.apply(FeedSnapshot(9, 11.0, 0.0, CLUSTER))
    model.apply(FeedDelta(10, 11.0))


@pytest.mark.parametrize(
    "frame",
    [
        FeedDelta(8, 1.0, {}, {"nonsense": EntryChanges(put=[{}])}),
        FeedDelta(8, 1.0, {}, {"workers": EntryChanges(put=[{}])}),
        FeedDelta(8, 99.0, {"workers": "no list"}),
        FeedDelta(8, 99.0, {"slo": 7}),
        FeedDelta(8, 1.0, {}, {"workers": EntryChanges(put=[{"name": "x", "degree": 0.5}])}),
        FeedDelta(8, 1.0, {}, {}, [{"t": 1.0}]),
        FeedDelta(8, 1.0, {}, {}, [{"t": "x", "type": "Hold"}]),
        FeedSnapshot(8, 1.0, 0.0, CLUSTER, [{"t": "x", "type": "Hold"}]),
        FeedDelta(8, 1.0, {}, {}, [{"t": 1.0, "type": "Placed", "request": 5}]),
        FeedDelta(8, 1.0, {}, {}, [{"t": 1.0, "type": "Converting"}]),
        FeedSnapshot(8, 1.0, 0.0, {"workers": 5}),
        FeedSnapshot(8, 1.0, 0.0, {"workers": [5]}),
        FeedSnapshot(8, 1.0, 0.0, {"workers": [{"name": "x"}]}),
        FeedSnapshot(8, 1.0, 0.0, {"workers": [{"name": []}]}),
    ],
    ids=lambda frame: msgspec.json.encode(frame).decode()[:70],
)
def test_nonsense_is_a_feed_error(frame):
    model = fed()
    with pytest.raises(FeedError):
        model.apply(frame)


def test_placements_are_kept_for_their_requests():
    model = fed(FeedDelta(8, 11.0, {}, {}, [PLACED]))
    assert model.placements["r1"].cost_s == 0.75
    assert model.events[-1].about.text.startswith("at CP2[0-1]: 100 tokens, 20 cached")
    assert model.events[-1].about.text.endswith("r1")


def test_an_unknown_event_is_shown_as_it_is():
    model = fed(FeedDelta(8, 11.0, {}, {}, [{"t": 11.0, "type": "Novelty", "x": 1}]))
    assert model.events[-1].about == ("Novelty", "x=1", "")


def test_a_conversion_knows_its_reason():
    times = {"operation": 1, "kind": "split", "before": ["CP2[0-1]"], "after": ["CP1[0]", "CP1[1]"]}
    decided = {"t": 11.0, "type": "Decided", "verdict": "split", "reason": "demand is high"}
    begun = {"t": 11.0, "type": "Converting", **times, "predicted_drain_s": 1.0}
    over = {
        **{"t": 12.0, "type": "Converted", **times, "outcome": "exposed", "phase": "adopt"},
        **{"reason": "", "drain_s": 0.9, "switch_s": 0.1},
    }
    model = fed(FeedDelta(8, 11.0, {}, {}, [decided, begun]), FeedDelta(9, 12.0, {}, {}, [over]))
    assert model.conversions[-1].reason == "demand is high"
    model.apply(FeedDelta(10, 20.0, {}, {}, [{**begun, "t": 20.0}, {**over, "t": 21.0}]))
    assert model.conversions[-1].reason == "asked for by hand"


def test_progress_is_layers_or_else_predicted_time():
    running = {**WORKER, "running": ["r1"]}
    request = {"request": "r1", "predicted_s": 4.0}
    put = {"workers": EntryChanges(put=[running]), "requests": EntryChanges(put=[request])}
    model = fed(FeedDelta(8, 20.0, {}, put), FeedDelta(9, 21.0))
    assert model.progress("r1") == 0.25
    layers = {**request, "layers_done": 3, "layers": 4}
    model.apply(FeedDelta(10, 22.0, {}, {"requests": EntryChanges(put=[layers])}))
    assert model.progress("r1") == 0.75
    assert model.progress("unknown") is None


def test_history_takes_rates_from_totals():
    totals = {"submitted": 5, "input_tokens": 1000, "cached_tokens": 250}
    model = fed(FeedDelta(8, 15.0, {"totals": totals}))
    latest = model.history.latest
    assert latest is not None
    assert (latest.request_rate, latest.hit_rate, latest.queue_s) == (1.0, 0.25, 1.0)


def test_a_burst_of_events_stays_within_bounds():
    model = fed()
    for seq in range(8, 18):
        model.apply(FeedDelta(seq, 11.0, {}, {}, [PLACED] * 1000))
    assert len(model.events) == EVENTS_KEPT
    assert len(model.placements) == 1


def test_ten_thousand_deltas_take_less_than_a_second_of_cpu():
    """The figure itself is benchmarks/console.py's; here ten times as much would be noticed."""
    model = fed()
    begin = time.process_time()
    for seq in range(8, 10_008):
        put = {"workers": EntryChanges(put=[{**WORKER, "queue_s": float(seq)}])}
        model.apply(FeedDelta(seq, seq / 100, {"epoch": seq}, put))
    assert time.process_time() - begin < 10
    assert model.cluster.workers[0].queue_s == 10_007.0


def test_the_recorded_run_has_its_conversions():
    model = player_at(1e9).model
    assert {c.converted.kind for c in model.conversions} == {"split", "merge"}
    assert all(c.reason.startswith("demand") for c in model.conversions)


@pytest.mark.parametrize(
    ("event", "label", "words"),
    [
        ({"hold_s": 1800.0, "by": "ann on ops-1"}, "held", "for 30:00, by ann on ops-1"),
        ({"hold_s": 0.0, "by": "bob"}, "hold ended", "automatic again, by bob"),
        ({"hold_s": 0.0, "by": ""}, "hold ended", "its time is over"),
    ],
)
def test_a_hold_and_its_end_are_told(event, label, words):
    about = describe("Held", event)
    assert about.label == label
    assert words in about.text
