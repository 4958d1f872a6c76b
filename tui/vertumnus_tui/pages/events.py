"""What happened, newest first."""

from __future__ import annotations

from vertumnus_tui.model import Event, Model
from vertumnus_tui.page import Page, View
from vertumnus_tui.table import Column, Rows, Table
from vertumnus_tui.text import Line, Span, line

COLUMNS = (Column("at", 8), Column("", 1), Column("event", 11), Column("", 0))


def page(model: Model, view: View) -> Page:
    shown = chosen(model, view.filter)
    table = Table(COLUMNS, view.width)
    head = [_summary(model, len(shown)), line(), table.header]
    keys = [f"event {event.number}" for event in shown]
    empty = "no event fits the filter" if view.filter else "nothing has happened yet"
    return Page(head, Rows(len(shown), lambda n: _row(model, shown[n], table)), keys, empty)


def chosen(model: Model, wanted: str) -> list[Event]:
    """Those with all the words that are wanted; a word after ``-`` is not wanted."""
    words = wanted.lower().split()
    if not words:
        return list(reversed(model.events))
    return [event for event in reversed(model.events) if _fits(event, words)]


def _fits(event: Event, words: list[str]) -> bool:
    text = f"{event.about.label} {event.about.text}".lower()
    return all(
        word[1:] not in text if word.startswith("-") and len(word) > 1 else word in text
        for word in words
    )


def _summary(model: Model, shown: int) -> Line:
    lost = f"   {model.events_lost} came too fast to be sent" if model.events_lost else ""
    text = f"{shown} of {len(model.events)}"
    return line(
        Span("  events  ", "title"), text, Span("   newest first", "dim"), Span(lost, "warn")
    )


def _row(model: Model, event: Event, table: Table) -> Line:
    about = event.about
    return table.row(
        Span(model.clock(event.t), "dim"),
        Span(about.mark, about.style),
        Span(about.label, about.style),
        about.text,
    )
