"""Requests that are not over: where each is, and the terms of its placement."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from vertumnus_tui.cluster import Request
from vertumnus_tui.model import Model
from vertumnus_tui.numbers import count, duration, seconds
from vertumnus_tui.page import Page, View
from vertumnus_tui.pages.cluster import progress
from vertumnus_tui.table import Column, Rows, Table
from vertumnus_tui.text import Line, Span, line
from vertumnusd.messages import Placed

PHASE_STYLE = {"unplaced": "bad", "waiting": "warn", "prefilling": "accent", "decoding": "good"}


class Sort(NamedTuple):
    name: str
    key: Callable[[Model, Request], float | str]


SORTS = (
    Sort("age", lambda model, r: model.t - (r.accepted_at or model.t)),
    Sort("tokens", lambda model, r: r.input_tokens),
    Sort("cost J", lambda model, r: p.cost_s if (p := _placed(model, r)) else 0.0),
    Sort("worker", lambda model, r: r.worker or ""),
    Sort("phase", lambda model, r: r.phase),
    Sort("request", lambda model, r: r.request),
)


def page(model: Model, view: View) -> Page:
    shown = chosen(model, view)
    table = Table(_columns(view), view.width)
    head = [_summary(model, len(shown), view), line(), table.header]
    keys = [f"request {request.request}" for request in shown]
    empty = "no request fits the filter" if view.filter else "no requests"
    return Page(head, Rows(len(shown), lambda n: _row(model, shown[n], view, table)), keys, empty)


def chosen(model: Model, view: View) -> list[Request]:
    """Filtered by any word in it, and sorted."""
    wanted = view.filter.lower()
    fitting = [r for r in model.cluster.requests if wanted in _words(r)]
    key = SORTS[view.sort % len(SORTS)].key
    return sorted(fitting, key=lambda request: key(model, request), reverse=view.descending)


def _words(request: Request) -> str:
    return f"{request.request} {request.phase} {request.worker or ''}".lower()


def _placed(model: Model, request: Request) -> Placed | None:
    return model.placements.get(request.request)


def _summary(model: Model, shown: int, view: View) -> Line:
    waiting, sort = model.cluster.waiting, SORTS[view.sort % len(SORTS)]
    order = "falling" if view.descending else "rising"
    text = f"{shown} of {len(model.cluster.requests)}"
    oldest = f"   oldest {duration(waiting.oldest_s)}" if waiting.requests else ""
    queued = f"   waiting {waiting.requests}, {count(waiting.tokens)} tokens{oldest}"
    sorted_by = f"   by {sort.name}, {order}"
    return line(Span("  requests  ", "title"), text, Span(queued, "dim"), Span(sorted_by, "dim"))


def _columns(view: View) -> list[Column]:
    columns = [
        Column("request", 0),
        Column("phase", 10),
        Column("worker", 10),
        Column("tokens", 6, ">"),
        Column("cached", 6, ">"),
        Column("q s", 5, ">"),
        Column("s s", 5, ">"),
        Column("J s", 5, ">"),
        Column("age", 6, ">"),
        Column("done", 30 if view.wide else 5, "<" if view.wide else ">"),
    ]
    if view.wide:
        columns[7:7] = [Column("price s", 7, ">")]
        columns[4:4] = [Column("prefers", 7, ">")]
        columns += [
            Column("TTFT s", 6, ">"),
            Column("output", 6, ">"),
            Column("decode", 6, ">"),
            Column("try", 3, ">"),
        ]
    return columns


def _row(model: Model, request: Request, view: View, table: Table) -> Line:
    placed = _placed(model, request)
    running, width = request.phase == "prefilling", 30 if view.wide else 5
    cells: list[Span | Line | str] = [
        request.request,
        Span(request.phase, PHASE_STYLE.get(request.phase, "")),
        request.worker or "-",
        count(request.input_tokens),
        count(placed.cached_tokens) if placed else "-",
        seconds(placed.queue_s) if placed else "-",
        seconds(placed.service_s) if placed else "-",
        seconds(placed.cost_s) if placed else "-",
        model.ago(request.accepted_at) if request.accepted_at is not None else "-",
        progress(model.progress(request.request) if running else None, width, view.glyphs),
    ]
    if view.wide:
        cells[7:7] = [seconds(placed.gpu_price_s) if placed else "-"]
        cells[4:4] = [f"CP{placed.preferred_degree}" if placed else "-"]
        cells += [
            seconds(request.ttft_s),
            count(request.output_tokens),
            str(request.decode_rank) if request.decode_rank is not None else "-",
            str(request.attempt + 1),
        ]
    return table.row(*cells)
