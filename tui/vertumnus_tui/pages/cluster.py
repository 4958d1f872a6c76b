"""The cluster: ranks in their workers, the demand that decides about them, the workers' work."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import groupby, islice
from typing import NamedTuple

from vertumnus_tui.bars import bar, gauge, sparkline
from vertumnus_tui.cluster import Adaptation, Cluster, Worker
from vertumnus_tui.glyphs import Glyphs
from vertumnus_tui.model import Event, Model
from vertumnus_tui.numbers import count, duration, percent, seconds
from vertumnus_tui.page import LEAST_WIDTH, WIDE, Page, View
from vertumnus_tui.table import Column, Rows, Table
from vertumnus_tui.text import Line, Span, length, line, spread

ROOMY = 150  # from this width on names need not be short
MAP_SHARE = 3  # the map takes at most one part in three of the page


class Cell(NamedTuple):
    """How a rank is drawn: with a gap to the next one, in a worker wide enough for its name."""

    gap: str
    named: bool


CELLS = (Cell(" ", True), Cell(" ", False), Cell("", False))  # the first one that fits
STATE_STYLE = {
    "serving": "good",
    "draining": "warn",
    "drained": "warn",
    "parking": "warn",
    "adopting": "warn",
    "withdrawn": "bad",
}


def page(model: Model, view: View) -> Page:
    cluster = model.cluster
    table = Table(_columns(view), view.width)
    longest_s = max((worker.queue_s for worker in cluster.workers), default=0.0)
    make = partial(_worker, model, cluster, view, table, longest_s)
    blank = line()
    head = [
        *rank_map(cluster, view),
        blank,
        *demand(model, view),
        blank,
        *_figures(model, view),
        blank,
        table.header,
    ]
    keys = [f"worker {worker.name}" for worker in cluster.workers]
    left = view.height - len(head) - len(keys)
    lines = _lately(model, view, left - 2) if left > 3 else []
    rows = len(keys)
    body = Rows(rows + len(lines), lambda n: make(n) if n < rows else lines[n - rows])
    return Page(head, body, [*keys, *[""] * len(lines)], "no workers")


def _lately(model: Model, view: View, room: int) -> list[Line]:
    """Where there is room: the last events of which there are not too many."""
    events = (event for event in reversed(model.events) if _is_rare(event))
    table = Table([Column("lately", 8), Column("", 1), Column("", 11), Column("", 0)], view.width)
    rows = [
        table.row(
            Span(model.clock(event.t), "dim"),
            Span(event.about.mark, event.about.style),
            Span(event.about.label, event.about.style),
            event.about.text,
        )
        for event in islice(events, room)
    ]
    return [line(), table.header, *rows] if rows else []


def _is_rare(event: Event) -> bool:
    """Neither one of the placements, nor a window that came to nothing."""
    came_to_nothing = event.kind == "Decided" and event.about.text.startswith("stay")
    return event.kind != "Placed" and not came_to_nothing


def degree_style(degree: int) -> str:
    return f"degree{min(degree, 16)}"


# --- the map


def rank_map(cluster: Cluster, view: View) -> list[Line]:
    """Two lines for every row of workers: their names, and their ranks."""
    node = f"  {cluster.node or 'ranks'}  "[: view.width // 4]
    most = max(1, view.height // MAP_SHARE // 2)
    for cell in CELLS:
        rows = _wrap(cluster.workers, cell, view.width - len(node))
        if len(rows) <= most:
            break
    lines: list[Line] = []
    for n, row in enumerate(rows[:most]):
        names: list[Span] = [Span(node if not n else " " * len(node), "title")]
        cells: list[Span] = [Span(" " * len(node))]
        for worker in row:
            names.append(Span(_label(worker, cell), degree_style(worker.degree)))
            cells += _cells(worker, cell, view.glyphs)
        lines += [tuple(names), tuple(cells)]
    return [*lines, _legend(view, sum(map(len, rows[most:])))]


def _wrap(workers: Iterable[Worker], cell: Cell, width: int) -> list[list[Worker]]:
    rows: list[list[Worker]] = [[]]
    left = width
    for worker in workers:
        needs = _width(worker, cell)
        if needs > left and rows[-1]:
            rows.append([])
            left = width
        rows[-1].append(worker)
        left -= needs
    return rows


def _width(worker: Worker, cell: Cell) -> int:
    """Of its ranks, the brackets around them, and the space behind."""
    cells = len(worker.ranks) * (1 + len(cell.gap)) - len(cell.gap) + 2
    return max(cells, len(worker.name) if cell.named else 0) + 1


def _label(worker: Worker, cell: Cell) -> str:
    """Its name, or where that is too long its degree."""
    room = _width(worker, cell) - 1
    name = worker.name
    text = name if len(name) <= room else f"CP{worker.degree}"
    return f"{text[:room]:<{room + 1}}"


def _cells(worker: Worker, cell: Cell, glyphs: Glyphs) -> list[Span]:
    style, gap = degree_style(worker.degree), cell.gap
    cells = [_cell(worker, rank, glyphs) for rank in worker.ranks]
    joined = [
        Span(gap.join(span.text for span in run) + gap, state)
        for state, run in groupby(cells, key=lambda span: span.style)
    ]
    if gap and joined:
        joined[-1] = joined[-1]._replace(text=joined[-1].text[: -len(gap)])
    spans = [Span("[", style), *joined, Span("]", style)]
    return [*spans, Span(" " * (_width(worker, cell) - length(spans)))]


def _cell(worker: Worker, rank: int, glyphs: Glyphs) -> Span:
    if rank in worker.ranks_down:
        return Span(glyphs.down, "bad")
    match worker.state:
        case "serving" if worker.running:
            return Span(glyphs.busy, degree_style(worker.degree))
        case "serving":
            return Span(glyphs.idle, degree_style(worker.degree))
        case "draining":
            return Span(glyphs.draining, "warn")
        case "withdrawn":
            return Span(glyphs.down, "bad")
    return Span(glyphs.switching, "warn")


def _legend(view: View, left_out: int) -> Line:
    g = view.glyphs
    text = (
        f"  {g.busy} busy  {g.idle} idle  {g.draining} draining  {g.switching} switching"
        f"  {g.down} down"
    )
    brackets = (
        f"{'brackets: ' * (view.width >= 100)}one worker, its ranks run each request together "
    )
    if len(text) + len(brackets) > view.width:
        brackets = "[ ] one worker "
    more = f"{left_out} more workers " if left_out else brackets
    return spread(line(Span(text, "dim")), line(Span(more, "dim")), view.width)


# --- demand


def demand(model: Model, view: View) -> list[Line]:
    """The last window's demand on its scale, the window now, and what would follow."""
    seen = model.cluster.adaptation
    if seen.window_ends_at is None:
        text = "the composition changes on command only"
        return [line(Span("  demand  ", "title"), Span(text, "dim"))]
    return [_gauge(model, seen, view), _thresholds(seen, view), *_next(model, seen, view)]


def _gauge(model: Model, seen: Adaptation, view: View) -> Line:
    decision = model.cluster.decision
    demand_s = decision.demand_s if decision else 0.0
    scale_s = seen.capacity_s or 1.0
    style = "bad" if demand_s > seen.upper_s else "good" if demand_s >= seen.lower_s else "bar"
    ends_s = seen.window_ends_at - model.t if seen.window_ends_at is not None else 0.0
    now = (
        f" {seconds(demand_s)} s   now {seconds(seen.demand_s)} s,"
        f" window ends in {duration(ends_s)} "
    )
    width = max(10, view.width - 10 - len(now))
    marks = (seen.lower_s / scale_s, seen.upper_s / scale_s)
    return (
        Span("  demand  ", "title"),
        *gauge(demand_s / scale_s, marks, width, view.glyphs, style),
        Span(now),
    )


def _thresholds(seen: Adaptation, view: View) -> Line:
    mark = view.glyphs.mark
    text = (
        f"merge below {mark} {seconds(seen.lower_s)} s   split above {mark}"
        f" {seconds(seen.upper_s)} s   capacity {seconds(seen.capacity_s)} s"
    )
    return line(" " * 10, Span(text, "dim"))


def _next(model: Model, seen: Adaptation, view: View) -> list[Line]:
    """What the controller would do, and why: in one line, or where that is too short in two."""
    what, why = _intention(model, seen, view)
    title = Span("  next    ", "title")
    if not why:
        return [line(title, *what)]
    if len(title.text) + length(what) + 2 + len(why) <= view.width:
        return [line(title, *what, ": ", why)]
    return [line(title, *what), line(" " * len(title.text), Span(why, "dim"))]


def _intention(model: Model, seen: Adaptation, view: View) -> tuple[Line, str]:
    decision = model.cluster.decision
    if seen.held_until is not None:
        left = duration(seen.held_until - model.t)
        return line(Span(f"nothing: held for {left} more", "warn")), ""
    if decision is None:
        return line(Span("the first window has not ended", "dim")), ""
    if seen.next is None:
        return line(Span("stay", "good")), decision.reason
    before, after = (" ".join(names) for names in (seen.next.before, seen.next.after))
    change = f" {before} {view.glyphs.arrow} {after}"
    held = f"{min(decision.held, seen.hold_windows)} of {seen.hold_windows} windows"
    return line(Span(seen.next.kind, "warn"), change), f"{decision.reason}, {held}"


# --- figures


def _figures(model: Model, view: View) -> list[Line]:
    cluster, now = model.cluster, model.history.latest
    recent = cluster.slo.recent_ttft_s if cluster.slo.requests else {}
    waiting = cluster.waiting
    why = ", ".join(f"{n} {reason}" for reason, n in waiting.reasons.items())
    pairs = [
        ("TTFT p50", f"{seconds(recent.get('p50'))} s"),
        ("p99", f"{seconds(recent.get('p99'))} s"),
        ("hit", percent(now.hit_rate if now else None)),
        ("SLO", percent(cluster.slo.attainment)),
        ("rate", f"{now.request_rate:.1f}/s" if now and now.request_rate is not None else "-"),
    ]
    first = _pairs(pairs)
    if view.wide and now:
        samples = model.history.last(view.window_s)
        spark = sparkline([sample.queue_s for sample in samples], 40, view.glyphs)
        first = (*first, Span("   queue ", "dim"), Span(spark, "plot"))
    reasons = f" (for: {why})" if why else ""
    used = 1 - _free_share(cluster)
    second = (
        *_pairs([("waiting", f"{waiting.requests}{reasons}")]),
        Span("  decode ", "dim"),
        Span(
            f"{sum(p.up for p in cluster.decode)} of {len(cluster.decode)} up, {percent(used)} full"
        ),
    )
    return [first, second]


def _free_share(cluster: Cluster) -> float:
    whole = sum(pool.kv_blocks for pool in cluster.decode if pool.up)
    free = sum(pool.free_blocks for pool in cluster.decode if pool.up)
    return free / whole if whole else 1.0


def _pairs(pairs: Iterable[tuple[str, str]]) -> Line:
    spans: list[Span] = []
    for name, value in pairs:
        spans += [Span(f"  {name} ", "dim"), Span(value, "value")]
    return tuple(spans)


# --- workers


def _columns(view: View) -> list[Column]:
    columns = [
        Column("worker", 11),
        Column("state", 9),
        Column("queue s", _bar_width(view) + 7, ">"),
        Column("wait", 4, ">"),
        Column("running", 10 + max(0, view.width - (ROOMY if view.wide else LEAST_WIDTH)) // 3),
        Column("progress", 0),
        Column("cached", 6, ">"),
        Column("hit", 4, ">"),
    ]
    if view.wide:
        columns[5:5] = [Column("tokens", 8, ">"), Column("predicted s", 11, ">")]
        columns += [
            Column("epoch", 6, ">"),
            Column("blocked by", 24 if view.width >= ROOMY else 14),
        ]
    return columns


def _bar_width(view: View) -> int:
    return 6 + max(0, view.width - WIDE) // 3


def _worker(
    model: Model, cluster: Cluster, view: View, table: Table, longest_s: float, n: int
) -> Line:
    worker = cluster.workers[n]
    name = worker.running[0] if worker.running else ""
    state = cluster.state_of(worker)
    cells: list[Span | Line | str] = [
        Span(worker.name, degree_style(worker.degree)),
        Span(state, STATE_STYLE.get(state, "")),
        _queue(worker, longest_s, view),
        Span(str(worker.waiting), "warn" if worker.blocked else ""),
        name or Span("-", "dim"),
        progress(model.progress(name) if name else None, table.width_of("progress"), view.glyphs),
        count(cluster.cached_tokens(worker)),
        percent(worker.hit_rate),
    ]
    if view.wide:
        request = model.request(name)
        tokens = count(request.input_tokens) if request else "-"
        predicted = seconds(request.predicted_s) if request else "-"
        cells[5:5] = [tokens, predicted]
        cells += [str(worker.epoch), Span(worker.blocked, "warn")]
    return table.row(*cells)


def _queue(worker: Worker, longest_s: float, view: View) -> Line:
    share = worker.queue_s / longest_s if longest_s > 0 else 0.0
    filled = bar(share, _bar_width(view), view.glyphs, degree_style(worker.degree))
    return (*filled, Span(f"{seconds(worker.queue_s):>7}"))


def progress(share: float | None, width: int, glyphs: Glyphs) -> Line:
    """A bar and its percentage; where there is no room for a bar, that alone."""
    if share is None:
        return (Span(" " * width),)
    text = f"{percent(share):>5}"
    if width <= len(text):
        return (Span(text[-width:]),)
    return (*bar(share, width - len(text), glyphs), Span(text))
