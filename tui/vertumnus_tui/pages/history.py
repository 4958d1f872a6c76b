"""How it went: the figures of the last minutes as curves, each from 0 to its own maximum."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from vertumnus_tui.bars import Values, plot
from vertumnus_tui.history import Sample
from vertumnus_tui.model import Model
from vertumnus_tui.numbers import duration, percent, seconds
from vertumnus_tui.page import Page, View
from vertumnus_tui.text import Line, Span, fit, line

COLUMNS = 2
AXIS = 7  # cells for the labels at the left of a curve


class Curve(NamedTuple):
    title: str
    value: Callable[[Sample], float | None]
    label: Callable[[float | None], str]
    top: float | None = None  # of the scale; else the largest value


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


CURVES = (
    Curve("TTFT p50, s", lambda s: s.ttft_p50_s, seconds),
    Curve("TTFT p99, s", lambda s: s.ttft_p99_s, seconds),
    Curve("mean queue of a worker, s", lambda s: s.queue_s, seconds),
    Curve("requests a second", lambda s: s.request_rate, _rate),
    Curve("hit rate", lambda s: s.hit_rate, percent, 1.0),
    Curve("long requests", lambda s: s.long_share, percent, 1.0),
    Curve("demand of a window, s", lambda s: s.demand_s, seconds),
    Curve("demand / capacity", lambda s: _load(s), percent),
)


def page(model: Model, view: View) -> Page:
    samples = model.history.last(view.window_s)
    head = [_title(model, view, samples)]
    rows = len(CURVES) // COLUMNS
    height = max(2, (view.height - 1) // rows - 1)
    width = (view.width - 2) // COLUMNS - 1
    for at in range(0, len(CURVES), COLUMNS):
        blocks = [
            _curve(curve, samples, width, height, view) for curve in CURVES[at : at + COLUMNS]
        ]
        head += [_beside(parts) for parts in zip(*blocks, strict=True)]
    return Page(head)


def _load(sample: Sample) -> float | None:
    if sample.demand_s is None or not sample.capacity_s:
        return None
    return sample.demand_s / sample.capacity_s


def _title(model: Model, view: View, samples: list[Sample]) -> Line:
    since = model.clock(samples[0].t) if samples else "-"
    text = f"the last {duration(view.window_s)}"
    span = f"   {since} to {model.clock(model.t)}"
    return line(Span("  history  ", "title"), text, Span(f"{span}   w changes the window", "dim"))


def _beside(parts: tuple[Line, ...]) -> Line:
    spans: list[Span] = [Span("  ")]
    for n, part in enumerate(parts):
        spans += [Span(" ")] * (n > 0) + list(part)
    return tuple(spans)


def _curve(curve: Curve, samples: list[Sample], width: int, height: int, view: View) -> list[Line]:
    values: Values = [curve.value(sample) for sample in _evenly(samples, view.window_s)]
    present = [value for value in values if value is not None]
    top = curve.top or max(present, default=0.0)
    now = present[-1] if present else None
    room = width - AXIS
    drawn = plot(values, room, height, top, view.glyphs)
    labels = ["", *[""] * (height - 2), "0"]
    labels[0] = curve.label(top) if present else ""
    title = line(
        Span(fit(curve.title, width - 8), "header"), Span(fit(curve.label(now), 8, ">"), "value")
    )
    return [
        title,
        *(
            line(Span(fit(label, AXIS - 1, ">"), "dim"), Span(" "), Span(text, "plot"))
            for label, text in zip(labels, drawn, strict=True)
        ),
    ]


def _evenly(samples: list[Sample], window_s: float) -> list[Sample]:
    """With the whole window before them, so that a young history is drawn at the right."""
    if not samples:
        return []
    first, last = samples[0].t, samples[-1].t
    missing = int((window_s - (last - first)) / max(1.0, (last - first) / max(1, len(samples) - 1)))
    nothing = Sample(first, *[None] * (len(Sample._fields) - 1))
    return [*[nothing] * max(0, missing), *samples]
