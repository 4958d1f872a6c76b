"""What a page is, and how it is cut to the screen: a head that stays, and a body that scrolls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vertumnus_tui.glyphs import UNICODE, Glyphs
from vertumnus_tui.text import Line, Span, cut, line

LEAST_WIDTH, LEAST_HEIGHT = 80, 24
WIDE = 120  # from this width on tables have more columns
WINDOWS_S = (60.0, 300.0, 900.0, 3600.0)


@dataclass(frozen=True, slots=True)
class View:
    """How the operator wants to see a page."""

    width: int = 80
    height: int = 21
    glyphs: Glyphs = UNICODE
    window_s: float = 300.0
    filter: str = ""
    sort: int = 0  # column of requests
    descending: bool = True

    @property
    def wide(self) -> bool:
        return self.width >= WIDE


@dataclass(frozen=True, slots=True)
class Page:
    """``keys`` name what the lines of the body are about; "" cannot be selected."""

    head: list[Line]
    body: Sequence[Line] = ()
    keys: Sequence[str] = ()
    empty: str = ""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Which line of the body is selected, and which is the first one that is seen.

    The selection sticks to what it is about while lines come and go around it; on the first line it
    stays the first, so that the newest event or the oldest request can be watched.
    """

    key: str = ""
    row: int = 0
    top: int = 0

    def settle(self, page: Page, room: int) -> Cursor:
        """Where it is after the page has changed."""
        rows = len(page.body)
        if not rows:
            return replace(self, row=0, top=0)
        row = min(self.row, rows - 1)
        sticks = self.key and self.row > _first(page.keys)
        if sticks and page.keys[row] != self.key and self.key in page.keys:
            row = list(page.keys).index(self.key)
        row = _nearest(page.keys, row)
        top = min(max(self.top, row - room + 1), row)
        top = max(0, min(top, rows - room))
        if row <= _first(page.keys):
            top = 0
        return Cursor(page.keys[row], row, top)

    def move(self, page: Page, room: int, by: int) -> Cursor:
        """By so many lines that can be selected; where there are none, scroll."""
        rows = len(page.body)
        if not any(page.keys):
            return replace(self, top=max(0, min(self.top + by, rows - room)))
        step, row = (1 if by > 0 else -1), self.row
        for _ in range(abs(by)):
            ahead = row + step
            while 0 <= ahead < rows and not page.keys[ahead]:
                ahead += step
            if not 0 <= ahead < rows:
                break
            row = ahead
        return Cursor("", row, self.top).settle(page, room)

    def go(self, page: Page, room: int, row: int) -> Cursor:
        return Cursor("", max(0, row), self.top).settle(page, room)


def _nearest(keys: Sequence[str], row: int) -> int:
    for distance in range(len(keys)):
        for candidate in (row + distance, row - distance):
            if 0 <= candidate < len(keys) and keys[candidate]:
                return candidate
    return row


def _first(keys: Sequence[str]) -> int:
    return next((n for n, key in enumerate(keys) if key), 0)


def room_for(page: Page, height: int) -> int:
    return max(1, height - len(page.head))


def screenful(page: Page, cursor: Cursor, view: View) -> list[Line]:
    """Exactly ``height`` lines of ``width`` cells. Clicks on rows act as ``row:N``."""
    width, height = view.width, view.height
    lines = [cut(each, width) for each in page.head[:height]]
    room = height - len(lines)
    if not page.body and page.empty:
        lines.append(cut(line(Span(f"  {page.empty}", "dim")), width))
    selectable = any(page.keys)
    for n in range(cursor.top, min(len(page.body), cursor.top + room)):
        selected = selectable and n == cursor.row
        lines.append(_row(page.body[n], n, selected, view, selectable and bool(page.keys[n])))
    blank = cut((), width)
    return [*lines, *[blank] * (height - len(lines))]


def _row(body: Line, n: int, selected: bool, view: View, clickable: bool) -> Line:
    action = f"row:{n}" if clickable else ""
    spans = cut(body, view.width)
    if action:
        spans = tuple(Span(text, style, own or action) for text, style, own in spans)
    if not selected:
        return spans
    marked = [span._replace(style=f"{span.style} selected".strip()) for span in spans]
    first = marked[0]
    marked[0] = first._replace(text=first.text[1:])
    return (Span(view.glyphs.here, "selected key", action), *marked)
