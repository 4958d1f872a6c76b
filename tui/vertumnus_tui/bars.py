"""Bars, gauges with marks, sparklines and plots, as text."""

from __future__ import annotations

from collections.abc import Sequence

from vertumnus_tui.glyphs import Glyphs
from vertumnus_tui.text import Line, Span

Values = Sequence[float | None]

# Dots of a braille cell: two columns of four, top row first.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BRAILLE = 0x2800


def bar(share: float, width: int, glyphs: Glyphs, style: str = "bar") -> Line:
    """``share`` of ``width`` cells filled; something above 0 shows, and so does what is left."""
    share = min(1.0, max(0.0, share))
    halves = round(share * width * 2)
    if share > 0:
        halves = max(halves, 1)
    if share < 1:
        halves = min(halves, width * 2 - 1)
    full, half = divmod(halves, 2)
    head = glyphs.half if half else ""
    if half and not head and (share > 0 and not full):
        full = 1
    filled = glyphs.bar * full + head
    return (Span(filled, style), Span(glyphs.track * (width - len(filled)), "track"))


def gauge(share: float, marks: Sequence[float], width: int, glyphs: Glyphs, style: str) -> Line:
    """A bar with marks at some shares of its width."""
    cells = [(c, span.style) for span in bar(share, width, glyphs, style) for c in span.text]
    for mark in marks:
        at = min(width - 1, max(0, round(mark * width)))
        cells[at] = (glyphs.mark, "mark")
    spans: list[Span] = []
    for character, cell_style in cells:
        if spans and spans[-1].style == cell_style:
            spans[-1] = Span(spans[-1].text + character, cell_style)
        else:
            spans.append(Span(character, cell_style))
    return tuple(spans)


def sparkline(values: Values, width: int, glyphs: Glyphs) -> str:
    """The last ``width`` values, between 0 and the largest of them."""
    shown = list(values)[-width:]
    top = max((value for value in shown if value is not None), default=0.0)
    levels = glyphs.levels
    text = "".join(
        " " if value is None else levels[_level(value, top, len(levels))] for value in shown
    )
    return text.rjust(width)


def _level(value: float, top: float, levels: int) -> int:
    return min(levels - 1, max(0, int(value / top * levels))) if top > 0 else 0


def resample(values: Values, count: int) -> list[float | None]:
    """``count`` values: the mean of each stretch, None where it has none."""
    if not values:
        return [None] * count
    means: list[float | None] = []
    for n in range(count):
        first = n * len(values) // count
        last = max(first + 1, (n + 1) * len(values) // count)
        present = [value for value in values[first:last] if value is not None]
        means.append(sum(present) / len(present) if present else None)
    return means


def plot(values: Values, width: int, height: int, top: float, glyphs: Glyphs) -> list[str]:
    """An area between 0 and a curve, whose top is ``top``, in ``height`` lines."""
    columns, rows = (2, 4) if glyphs.braille else (1, 1)
    points = resample(values, width * columns)
    lit = [[0] * width for _ in range(height)]
    for x, value in enumerate(points):
        if value is None:
            continue
        for dot in range(_row(value, top, height * rows), height * rows):
            cell = _DOTS[x % 2][dot % rows] if glyphs.braille else 1
            lit[dot // rows][x // columns] |= cell
    draw = _braille if glyphs.braille else _star
    return ["".join(map(draw, row)) for row in lit]


def _row(value: float, top: float, rows: int) -> int:
    share = min(1.0, max(0.0, value / top)) if top > 0 else 0.0
    return round((1 - share) * (rows - 1))


def _braille(dots: int) -> str:
    return chr(_BRAILLE + dots) if dots else " "


def _star(dots: int) -> str:
    return "*" if dots else " "
