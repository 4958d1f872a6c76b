"""What is on the screen, without a terminal."""

import re

import pytest
from screens import MERGES_S, SIZES, SPLITS_S, golden, panel_at, text
from vertumnus_tui.details import details
from vertumnus_tui.dialogs import facts_text
from vertumnus_tui.model import Model
from vertumnus_tui.page import LEAST_HEIGHT, LEAST_WIDTH
from vertumnus_tui.palette import PALETTES
from vertumnus_tui.panel import NAMES, ORDERS, Panel
from vertumnus_tui.status import Live, Lost
from vertumnus_tui.text import length, plain, safe

from vertumnusd.messages import FeedSnapshot, RecordingLine

PAGES = [(name, size) for name in NAMES for size in SIZES]
HOSTILE = "\x1b[31m]0;evil\x07\u202e漢[bold]"


@pytest.mark.parametrize(("page", "size"), PAGES)
def test_the_recorded_run_looks_as_it_did(page, size):
    assert text(page, size) == golden(page, size).read_text("utf-8")


@pytest.mark.parametrize("page", NAMES)
def test_every_line_fits_every_size(page):
    panel = panel_at(MERGES_S, page, admin=True)
    for width in (1, 2, 79, 80, 81, 100, 119, 120, 121, 240, 400):
        for height in (1, 2, 23, 24, 25, 37, 60, 120):
            lines = panel.screen(width, height)
            assert [length(line) for line in lines] == [width] * height, (width, height)


@pytest.mark.parametrize("size", [(79, 24), (80, 23), (20, 5)])
def test_too_small_a_terminal_says_so(size):
    shown = panel_at(SPLITS_S).text(*size)
    assert "too small" in shown
    assert f"{LEAST_WIDTH}x{LEAST_HEIGHT}" in shown


@pytest.mark.parametrize("page", NAMES)
def test_ascii_is_ascii(page):
    shown = panel_at(MERGES_S, page, ascii=True).text(100, 40)
    assert shown.isascii()
    assert "?" not in shown.replace("? help", "")


def hostile_cluster() -> dict:
    worker = {"name": HOSTILE, "degree": 2, "ranks": [0, 1], "running": [HOSTILE], "state": HOSTILE}
    return {
        **{"composition": HOSTILE, "model": HOSTILE, "node": HOSTILE, "unready": HOSTILE},
        "workers": [{**worker, "blocked": HOSTILE, "waiting": 1}],
        "requests": [{"request": HOSTILE, "phase": HOSTILE, "worker": HOSTILE}],
        "operations": [{"operation": 1, "kind": HOSTILE, "before": [HOSTILE], "phase": HOSTILE}],
        "hot_prefixes": [{"prefix": HOSTILE}],
        "transfers": [{"transfer": 1, "prefix": HOSTILE}],
        "waiting": {"requests": 1, "reasons": {HOSTILE: 1}},
        "decision": {"verdict": HOSTILE, "signal": HOSTILE, "reason": HOSTILE},
        "adaptation": {
            "window_ends_at": 5.0,
            "next": {"kind": HOSTILE, "before": [HOSTILE], "after": [HOSTILE]},
        },
    }


def hostile_events() -> list[dict]:
    ending = {"outcome": HOSTILE, "phase": HOSTILE, "reason": HOSTILE}
    change = {"operation": 1, "kind": HOSTILE, "before": [HOSTILE], "after": [HOSTILE]}
    return [
        {"t": 1.0, "type": "Reject", "request": HOSTILE, "reason": HOSTILE},
        {"t": 1.0, "type": "Withdrawn", "worker": HOSTILE, "reason": HOSTILE},
        {"t": 1.0, "type": "RankDown", "rank": HOSTILE, "kind": HOSTILE, "reason": HOSTILE},
        {"t": 1.0, "type": "Converting", **change, "predicted_drain_s": 1.0},
        {"t": 1.0, "type": "Converted", **change, **ending, "drain_s": 1.0, "switch_s": 1.0},
        {"t": 1.0, "type": HOSTILE, HOSTILE: HOSTILE},
    ]


@pytest.mark.parametrize("page", NAMES)
def test_foreign_text_cannot_leave_its_place(page):
    model = Model()
    model.apply(FeedSnapshot(1, 1.0, 0.0, hostile_cluster(), hostile_events()))
    panel = Panel(model)
    panel.status = Lost(HOSTILE, 1.0)
    panel.go(page)
    shown = panel.screen(160, 50)
    assert [length(line) for line in shown] == [160] * 50
    for line in shown:
        assert plain(line).isprintable()
        assert not set("\u202e漢") & set(plain(line))


@pytest.mark.parametrize("kind", ["worker", "request", "conversion", "prefix", "event"])
def test_foreign_text_cannot_leave_its_place_in_details(kind):
    model = Model()
    model.apply(FeedSnapshot(1, 1.0, 0.0, hostile_cluster(), hostile_events()))
    names = {"conversion": "1", "event": "5"}
    title, facts = details(model, f"{kind} {names.get(kind, HOSTILE)}")
    assert facts
    shown = facts_text(title, facts, PALETTES["vertumnus-dark"], safe).plain
    assert shown.replace("\n", "").isprintable()


def test_the_screen_says_that_the_picture_is_old():
    panel = panel_at(SPLITS_S)
    panel.status = Live()
    assert "live" in panel.text(100, 30)
    panel.status = Lost("no node at its socket", 2.0)
    title = panel.text(100, 30).splitlines()[0]
    assert "live" not in title
    assert "not connected, again in 2s" in title
    assert "no node at its socket" in panel.text(100, 30).splitlines()[2]
    assert "2CP4/4CP2" in title


def test_before_the_first_picture_it_says_what_it_waits_for():
    panel = Panel(Model())
    panel.status = Lost("no node there", 4.0)
    assert "no node there" in panel.text(80, 24)


def test_a_hold_is_seen_on_every_page():
    panel = panel_at(SPLITS_S)
    held = {**panel.model.raw()["adaptation"], "held_until": panel.model.t + 90}
    raw = {**panel.model.raw(), "adaptation": held}
    panel.model.show(RecordingLine(panel.model.t, raw), None)
    assert "held 1:30" in panel.text(80, 24).splitlines()[0]
    assert "nothing: held for 1:30 more" in panel.text(80, 24)


def test_the_selection_follows_its_request():
    panel = panel_at(SPLITS_S, "requests")
    panel.screen(80, 24)
    panel.move(2)
    panel.screen(80, 24)
    selected = panel.selected
    panel.next_sort()
    panel.screen(80, 24)
    assert panel.selected == selected


def test_the_first_line_stays_selected_while_new_ones_come():
    panel = panel_at(MERGES_S, "events")
    panel.screen(80, 24)
    newest = panel.model.events[-1].number
    assert panel.selected == f"event {newest}"
    event = {"t": panel.model.t, "type": "Held", "hold_s": 1.0, "by": ""}
    panel.model.show(RecordingLine(panel.model.t, panel.model.raw(), [event]), None)
    panel.screen(80, 24)
    assert panel.selected == f"event {newest + 1}"


def test_the_body_scrolls_with_the_selection():
    panel = panel_at(MERGES_S, "events")
    first = panel.text(80, 24)
    for _ in range(30):
        panel.move(1)
        panel.screen(80, 24)
    shown = panel.text(80, 24)
    assert shown != first
    assert "▸" in shown
    assert re.search(r"\d+-\d+ of \d+ $", shown.splitlines()[-1] + " ")
    panel.to_end(first=True)
    assert panel.text(80, 24) == first


def test_a_filter_keeps_what_has_all_words_and_none_of_the_unwanted():
    panel = panel_at(MERGES_S, "events")
    panel.set_filter("merge -draining -converting")
    rows = panel.text(160, 50).splitlines()[5:-1]
    shown = [row for row in rows if row.strip()]
    assert shown
    assert all("merge" in row and "converting" not in row for row in shown)
    panel.set_filter("no such word")
    assert "no event fits the filter" in panel.text(80, 24)


def test_requests_are_sorted_by_any_column():
    panel = panel_at(SPLITS_S, "requests")
    panel.next_sort()

    def tokens() -> list[str]:
        return re.findall(r"CP\d\[[\d-]+\] +([\d.]+)k", panel.text(80, 24))

    falling = [float(n) for n in tokens()]
    assert falling == sorted(falling, reverse=True)
    panel.reverse()
    assert [float(n) for n in tokens()] == falling[::-1]


def test_a_placement_is_explained_by_its_terms():
    panel = panel_at(SPLITS_S, "requests")
    panel.screen(80, 24)
    facts = dict(details(panel.model, panel.selected)[1])
    placed = panel.model.placements[panel.selected.removeprefix("request ")]
    assert facts["J"].startswith(f"{placed.cost_s:.2f}")
    assert facts["placed at"] == f"{placed.worker}, degree {placed.degree}"


def test_what_is_gone_has_no_details():
    assert details(panel_at(SPLITS_S).model, "worker CP64[0-63]")[1] == []


def test_the_window_of_history_changes_everywhere():
    panel = panel_at(MERGES_S, "history")
    assert "the last 5:00" in panel.text(80, 24)
    panel.next_window()
    assert "the last 15:00" in panel.text(80, 24)


@pytest.mark.parametrize(("workers", "degree"), [(64, 4), (64, 1), (8, 64), (1, 1), (0, 1)])
def test_clusters_of_any_size_have_a_map_and_room_for_a_table(workers, degree):
    entries = [
        {
            "name": f"CP{degree}[{n * degree}-{(n + 1) * degree - 1}]",
            "degree": degree,
            "ranks": list(range(n * degree, (n + 1) * degree)),
            "state": "serving",
        }
        for n in range(workers)
    ]
    model = Model()
    model.apply(FeedSnapshot(1, 1.0, 0.0, {"composition": "x", "workers": entries}))
    panel = Panel(model)
    shown = panel.text(80, 24)
    assert "worker " in shown
    assert "no workers" in shown if not workers else "serving" in shown


def test_a_copy_shows_its_kind_phase_and_bytes():
    panel = panel_at(SPLITS_S, "prefixes")
    copy = {
        **{"transfer": 7, "prefix": "c0ffee00", "kind": "fetch", "phase": "installing"},
        **{"blocks": 4, "source_home": 0, "destination_home": 2, "kv_bytes": 2**20},
        "deadline": panel.model.t + 65,
    }
    geometry = {**panel.model.raw()["geometry"], "block_tokens": 512}
    more = {"transfers": [copy], "geometry": geometry, "kv_bytes_per_token": 1024}
    panel.model.show(RecordingLine(panel.model.t, {**panel.model.raw(), **more}), None)
    row = next(row for row in panel.text(80, 24).splitlines() if "c0ffee00" in row)
    assert re.search(r"7 +c0ffee00 fetch 0 → 2 +installing ━+╸?─+ +50% +2.0 MiB +1:05", row), row


@pytest.mark.parametrize("page", NAMES)
def test_an_operator_sees_every_order_in_the_last_line(page):
    wide = panel_at(SPLITS_S, page, admin=True)
    wide.status = Live()
    for width in (80, 160):
        last = wide.text(width, 30).splitlines()[-1]
        assert all(key in last for key in ORDERS), last
        assert "…" not in last


@pytest.mark.parametrize("width", [80, 100, 119, 120, 135, 149, 150, 200])
def test_all_titles_of_the_workers_fit(width):
    rows = panel_at(SPLITS_S).text(width, 40).splitlines()
    header = next(row for row in rows if row.startswith("  worker "))
    assert header.endswith("blocked by" if width >= 120 else "hit")
