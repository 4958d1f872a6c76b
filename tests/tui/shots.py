"""Draws the pictures of ``docs/console/`` from the recorded run.

python tests/tui/shots.py           from the root of the repository

An SVG of its own, not a terminal's: every piece of text stands at its cell and is told its width,
so that it looks alike with any monospaced font, and no font is fetched from anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path

from rich.style import Style
from screens import MERGES_S, SECONDS, panel_at
from vertumnus_tui.palette import PALETTES
from vertumnus_tui.panel import NAMES
from vertumnus_tui.text import Line, Span

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "console"
COLUMNS, ROWS = 110, 32
CELL, LINE, MARGIN = 8.4, 19.0, 16.0  # a cell's width and height, and what is around the screen
PALETTE = PALETTES["vertumnus-dark"]
WINDOW_S = 60.0  # of history: the run is short
FONT = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"


def draw(page: str) -> str:
    panel = panel_at(SECONDS.get(page, MERGES_S), page)
    while panel.view.window_s != WINDOW_S:
        panel.next_window()
    lines = panel.screen(COLUMNS, ROWS)
    width, height = COLUMNS * CELL + 2 * MARGIN, ROWS * LINE + 2 * MARGIN
    pieces = [piece for y, line in enumerate(lines) for piece in _line(y, line)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}"'
            f' font-family="{FONT}" font-size="14" role="img">',
            f"<title>vertumnusd tui: {page}</title>",
            f'<rect width="100%" height="100%" rx="8" fill="{PALETTE.background}"/>',
            *pieces,
            "</svg>\n",
        ]
    )


def _line(y: int, line: Line) -> Iterator[str]:
    x = 0
    for span in line:
        yield from _span(x, y, span)
        x += len(span.text)


def _span(x: int, y: int, span: Span) -> Iterator[str]:
    style = PALETTE.style(span.style)
    ink, paper = _colours(style)
    left, top = MARGIN + x * CELL, MARGIN + y * LINE
    if paper:
        width = len(span.text) * CELL
        yield (
            f'<rect x="{left:.1f}" y="{top:g}" width="{width:.1f}" height="{LINE:g}"'
            f' fill="{paper}"/>'
        )
    if any(_is_braille(character) for character in span.text):
        yield f'<path fill="{ink}" d="{_area(left, top, span.text)}"/>'
        return
    text = span.text.strip()
    if text:
        left += (len(span.text) - len(span.text.lstrip())) * CELL
        bold = ' font-weight="bold"' if style.bold else ""
        yield (
            f'<text x="{left:.1f}" y="{top + LINE - 5:g}" textLength="{len(text) * CELL:.1f}"'
            f' lengthAdjust="spacingAndGlyphs" fill="{ink}"{bold} xml:space="preserve">'
            f"{escape(text)}</text>"
        )


def _is_braille(character: str) -> bool:
    return 0x2800 <= ord(character) < 0x2900


def _area(left: float, top: float, text: str) -> str:
    """Braille as it is meant, since few fonts have it: where a curve's dots are, an area."""
    dots = [ord(character) - 0x2800 if _is_braille(character) else 0 for character in text]
    columns = [
        tuple(cell & bit != 0 for bit in bits)
        for cell in dots
        for bits in ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
    ]
    path, x = "", left
    for column, alike in groupby(columns):
        width = len(list(alike)) * CELL / 2
        lit = [row for row, dot in enumerate(column) if dot]
        if lit:
            y, height = top + lit[0] * LINE / 4, (lit[-1] - lit[0] + 1) * LINE / 4
            path += f"M{x:.1f} {y:.1f}h{width:.1f}v{height:.1f}h{-width:.1f}z"
        x += width
    return path


def _colours(style: Style) -> tuple[str, str]:
    """Of the text, and of what is behind it ("": nothing)."""
    ink = style.color.name if style.color else PALETTE.foreground
    paper = style.bgcolor.name if style.bgcolor else ""
    return (PALETTE.background, ink) if style.reverse else (ink, paper)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in NAMES:
        (FOLDER / f"{name}.svg").write_text(draw(name), "utf-8")
