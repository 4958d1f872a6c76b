"""Text for a grid of cells: pieces put into lines, and foreign characters made harmless.

Every character of a line takes one cell, so widths are lengths. Whatever a terminal could draw
otherwise (control characters, marks that change direction or combine, letters written from right to
left, wide characters) is replaced, one for one, by ``safe``: pages need not care, it is applied to
all that leaves for the terminal (``panel.py``, ``dialogs.py``).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from rich.cells import cell_len

REPLACEMENT = "?"

_LEFT_TO_RIGHT = frozenset({"L", "EN", "ES", "ET", "AN", "CS", "WS", "ON"})
_DRAWN = frozenset({"L", "N", "P", "S"})  # first letters of categories; and the plain space


class Span(NamedTuple):
    """A piece of a line. ``style`` is a name in ``palette.py``; a click on it does ``action``."""

    text: str
    style: str = ""
    action: str = ""


Line = tuple[Span, ...]


@lru_cache(maxsize=4096)
def safe(text: str) -> str:
    """As many characters, each of which takes one cell and does nothing else."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_safe_character, text))


def _safe_character(character: str) -> str:
    if character in "\n\t":
        return " "
    drawn = character == " " or unicodedata.category(character)[0] in _DRAWN
    narrow = cell_len(character) == 1
    forward = unicodedata.bidirectional(character) in _LEFT_TO_RIGHT
    return character if drawn and narrow and forward else REPLACEMENT


def fit(text: str, width: int, align: str = "<") -> str:
    """Exactly ``width`` cells: filled up, or cut with an ellipsis at the end."""
    if width <= 0:
        return ""
    if len(text) > width:
        return text[: width - 1] + "…"
    return f"{text:{align}{width}}"


def line(*spans: Span | str) -> Line:
    return tuple(span if isinstance(span, Span) else Span(span) for span in spans)


def length(spans: Iterable[Span]) -> int:
    return sum(len(span.text) for span in spans)


def plain(spans: Iterable[Span]) -> str:
    return "".join(span.text for span in spans)


def cut(spans: Line, width: int) -> Line:
    """The line in exactly ``width`` cells."""
    kept: list[Span] = []
    left = width
    for span in spans:
        if len(span.text) > left:
            kept.append(span._replace(text=fit(span.text, left)))
            return tuple(kept)
        kept.append(span)
        left -= len(span.text)
    return (*kept, Span(" " * left)) if left else tuple(kept)


def spread(left: Line, right: Line, width: int) -> Line:
    """One piece at each end; the right one wins where there is too little room."""
    room = max(0, width - length(right))
    return (*cut(left, room), *right)
