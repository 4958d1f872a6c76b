"""Splits and merges: those under way with their phases, those that are over, and every decision."""

from __future__ import annotations

from vertumnus_tui.bars import bar
from vertumnus_tui.cluster import Decision, Operation
from vertumnus_tui.model import Conversion, Model
from vertumnus_tui.numbers import duration, percent, seconds
from vertumnus_tui.page import Page, View
from vertumnus_tui.pages.cluster import demand
from vertumnus_tui.table import Column, Table
from vertumnus_tui.text import Line, Span, fit, line

PHASES = ("drain", "park", "adopt", "expose")
NAME_WIDTH = 34


def page(model: Model, view: View) -> Page:
    head = [_mode(model), *demand(model, view), line(), *_under_way(model, view), line()]
    body: list[Line] = []
    keys: list[str] = []
    for conversion in reversed(model.conversions):
        body += _conversion(model, conversion, view)
        keys += [f"conversion {conversion.converted.operation}", ""]
    if model.conversions:
        body.insert(0, _section("over", "", view))
        keys.insert(0, "")
    decisions = _decisions(model, view)
    return Page(
        head,
        [*body, *decisions],
        [*keys, *[""] * len(decisions)],
        "no split or merge, and no decision yet",
    )


def _section(title: str, note: str, view: View) -> Line:
    rule = view.glyphs.rule * max(0, view.width - len(title) - len(note) - 6)
    return line(
        Span(f"  {title} ", "title"), Span(f"{note} " if note else "", "dim"), Span(rule, "track")
    )


def _mode(model: Model) -> Line:
    seen = model.cluster.adaptation
    composition = model.cluster.composition
    if seen.held_until is not None:
        mode = Span(f"held for {duration(seen.held_until - model.t)} more", "warn")
    elif seen.window_ends_at is None:
        mode = Span("by hand", "warn")
    else:
        mode = Span("automatic", "good")
    return line(Span("  mode    ", "title"), mode, Span("   composition ", "dim"), composition)


# --- under way


def _under_way(model: Model, view: View) -> list[Line]:
    operations = model.cluster.operations
    if not operations:
        return [line(Span("  under way  ", "title"), Span("nothing", "dim"))]
    lines = [_section("under way", "", view)]
    for operation in operations:
        lines += _operation(model, operation, view)
    return lines


def _operation(model: Model, operation: Operation, view: View) -> list[Line]:
    reason = model.reasons.get(operation.operation, "")
    change = _change(operation.kind, operation.before, operation.after, view)
    predicted = operation.predicted_drain_s or 0.0
    first = line(Span("  "), *change, Span(f"   {reason}", "dim"))
    return [first, _phases(operation, predicted, view)]


def _phases(operation: Operation, predicted_s: float, view: View) -> Line:
    """One bar a phase; the one that is going on grows towards what was predicted."""
    width = max(4, (view.width - 4) // len(PHASES) - 16)
    times = (operation.drain_s, operation.park_s, operation.adopt_s, None)
    spans: list[Span] = [Span("    ")]
    for phase, time_s in zip(PHASES, times, strict=True):
        current = operation.phase == phase
        style = "warn" if current else "good" if time_s is not None else "dim"
        share = 0.0 if time_s is None else 1.0
        if current and time_s is not None:
            share = min(0.95, time_s / predicted_s) if phase == "drain" and predicted_s else 0.5
        text = f"{seconds(time_s)} s" if time_s is not None else ""
        spans += [
            Span(f"{phase} ", style),
            *bar(share, width, view.glyphs, style),
            Span(f" {text:<8}"),
        ]
    return tuple(spans)


def _change(kind: str, before: list[str], after: list[str], view: View) -> list[Span]:
    names = f"{' '.join(before)} {view.glyphs.arrow} {' '.join(after)}"
    return [Span(f"{kind:<6}", "accent"), Span(names)]


# --- over


def _conversion(model: Model, conversion: Conversion, view: View) -> list[Line]:
    """What it was and how long it took; below, why."""
    over = conversion.converted
    good = over.outcome == "exposed"
    longest_s = max(c.converted.drain_s + c.converted.switch_s for c in model.conversions) or 1.0
    width = 24 if view.wide else 8
    drain = bar(over.drain_s / longest_s, width, view.glyphs, "warn")
    names = _change(over.kind, list(over.before), list(over.after), view)
    outcome = Span(fit(over.outcome, 11), "good" if good else "bad")
    times = f" drain {seconds(over.drain_s):>5} s  switch {seconds(over.switch_s):>5} s"
    why = conversion.reason if good else f"{over.phase}: {over.reason}; {conversion.reason}"
    first = line(Span(f"  {model.clock(conversion.t)} ", "dim"), *names)
    second = line(" " * 11, outcome, *drain, times, Span(f"  {why}", "dim"))
    return [first, second]


def _decisions(model: Model, view: View) -> list[Line]:
    if not model.decisions:
        return []
    columns = [
        Column("at", 8),
        Column("did", 5),
        Column("signal", 6),
        Column("held", 4, ">"),
        Column("demand s", 8, ">"),
        Column("of", 6, ">"),
        Column("long", 4, ">"),
        Column("why", 0),
    ]
    table = Table(columns, view.width)
    rows = [_decision(model, t, decision, table) for t, decision in reversed(model.decisions)]
    return [_section("decisions", "one a window", view), table.header, *rows]


def _decision(model: Model, t: float, decision: Decision, table: Table) -> Line:
    acted = decision.verdict != "stay"
    return table.row(
        Span(model.clock(t), "dim"),
        Span(decision.verdict, "accent" if acted else ""),
        Span(decision.signal, "warn" if decision.signal != "stay" else "dim"),
        str(decision.held),
        seconds(decision.demand_s),
        seconds(decision.capacity_s),
        percent(decision.long_request_share),
        decision.reason,
    )
