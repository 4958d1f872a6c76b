"""Tables: columns of fixed width, and one that takes what is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, overload

from vertumnus_tui.text import Line, Span, cut, fit

GAP = " "  # between cells
MARGIN = "  "  # room for the mark of the selected row


class Column(NamedTuple):
    """``width`` 0: what is left, at least ``least``."""

    title: str
    width: int
    align: str = "<"
    least: int = 10


class Table:
    """Lays cells out under their titles."""

    def __init__(self, columns: Sequence[Column], width: int) -> None:
        self._columns = columns
        gaps = len(columns) - 1 + len(MARGIN)
        left = width - gaps - sum(column.width for column in columns)
        self._widths = [column.width or max(column.least, left) for column in columns]
        self._width = width

    def width_of(self, title: str) -> int:
        """Cells of the column with this title."""
        titles = [column.title for column in self._columns]
        return self._widths[titles.index(title)]

    @property
    def header(self) -> Line:
        titles = (
            fit(column.title, width, column.align)
            for column, width in zip(self._columns, self._widths, strict=True)
        )
        return (Span(fit(MARGIN + " ".join(titles), self._width), "header"),)

    def row(self, *cells: Span | Line | str) -> Line:
        """A cell is text, or a line of its own that is cut to the column's width."""
        spans: list[Span] = [Span(MARGIN)]
        for column, width, cell in zip(self._columns, self._widths, cells, strict=True):
            if isinstance(cell, str):
                spans.append(Span(fit(cell, width, column.align) + GAP))
            elif isinstance(cell, Span):
                spans.append(Span(fit(cell.text, width, column.align) + GAP, cell.style))
            else:
                spans.extend(cut(cell, width))
                spans.append(Span(GAP))
        spans[-1] = Span(spans[-1].text[: -len(GAP)], spans[-1].style)
        return cut(tuple(spans), self._width)


class Rows(Sequence[Line]):
    """Lines that are made when they are looked at: of a long list only a page is."""

    def __init__(self, count: int, make: Callable[[int], Line]) -> None:
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> Line: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Line]: ...
    def __getitem__(self, at: int | slice) -> Line | Sequence[Line]:
        if isinstance(at, slice):
            return [self._make(n) for n in range(self._count)[at]]
        return self._make(range(self._count)[at])
