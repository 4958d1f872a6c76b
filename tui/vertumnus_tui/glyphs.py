"""What is drawn with: characters of the box and block ranges, or plain ASCII.

Both sets have one cell a character. States of ranks differ by their shape, not by colour alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from vertumnus_tui.text import safe


@dataclass(frozen=True, slots=True)
class Glyphs:
    busy: str
    idle: str
    draining: str
    switching: str
    down: str
    bar: str  # full cell of a bar,
    half: str  # half a cell ("" if there is none),
    track: str  # and what is left of it
    mark: str  # on a gauge
    levels: str  # of a sparkline, lowest first
    here: str  # selected row
    arrow: str
    rule: str
    ellipsis: str
    dot: str
    live: str
    multiply: str
    braille: bool


UNICODE = Glyphs(
    busy="■",
    idle="□",
    draining="◧",
    switching="◇",
    down="×",
    bar="━",
    half="╸",
    track="─",
    mark="┃",
    levels="▁▂▃▄▅▆▇█",
    here="▸",
    arrow="→",
    rule="─",
    ellipsis="…",
    dot="·",
    live="●",
    multiply="·",
    braille=True,
)
ASCII = Glyphs(
    busy="#",
    idle=".",
    draining="d",
    switching="o",
    down="x",
    bar="=",
    half="",
    track="-",
    mark="|",
    levels="_.:-=+*#",
    here=">",
    arrow="->",
    rule="-",
    ellipsis="~",
    dot="-",
    live="*",
    multiply="*",
    braille=False,
)

_TO_ASCII = str.maketrans({"…": "~", "·": "-", "→": ">", "–": "-", "−": "-", "λ": "l", "β": "b"})


def to_ascii(text: str) -> str:
    """As many characters: our own signs spelled out, all others replaced."""
    ascii = safe(text).translate(_TO_ASCII)
    return ascii if ascii.isascii() else ascii.encode("ascii", "replace").decode("ascii")
