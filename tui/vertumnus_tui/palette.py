"""Colours: what a style's name means in each theme.

A style is words, such as ``degree4 selected``: each adds to the ones before it. The themes without
colour use weight, underlining and reversal only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from rich.style import Style
from textual.theme import Theme


@dataclass(frozen=True)
class Palette:
    name: str
    dark: bool
    background: str
    foreground: str
    accent: str
    styles: Mapping[str, Style]

    def style(self, words: str) -> Style:
        return _style(self.name, words)

    @property
    def theme(self) -> Theme:
        """The same for what Textual itself draws."""
        return Theme(
            name=self.name,
            primary=self.accent,
            foreground=self.foreground,
            background=self.background,
            surface=self.background,
            panel=self.background,
            dark=self.dark,
        )


def _coloured(
    text: Mapping[str, str], degrees: tuple[str, ...], chrome: str, selected: str
) -> dict[str, Style]:
    styles = {name: Style(color=colour) for name, colour in text.items()}
    bold = Style(bold=True)
    for name in ("title", "value", "key", "mark"):
        styles[name] += bold
    styles |= {f"degree{2**n}": Style(color=colour) for n, colour in enumerate(degrees)}
    styles |= {
        "chrome": Style(bgcolor=chrome),
        "selected": Style(bgcolor=selected),
        "active": Style(reverse=True, bold=True),
    }
    return styles


_DARK = _coloured(
    {
        "": "#c9ced6",
        "dim": "#828a97",
        "title": "#e9ecf1",
        "value": "#e9ecf1",
        "header": "#9aa3b2",
        "key": "#8ab6e1",
        "accent": "#8ab6e1",
        "good": "#93c47d",
        "warn": "#e3b565",
        "bad": "#ea7a82",
        "bar": "#8ab6e1",
        "plot": "#8ab6e1",
        "track": "#3d4653",
        "mark": "#e3b565",
    },
    ("#a8b3c0", "#7fcac3", "#86aef0", "#bd99e8", "#e79ac0"),
    chrome="#1b222b",
    selected="#27313e",
)
_LIGHT = _coloured(
    {
        "": "#2b323b",
        "dim": "#646d79",
        "title": "#0d1117",
        "value": "#0d1117",
        "header": "#525b67",
        "key": "#1f5fa8",
        "accent": "#1f5fa8",
        "good": "#2e7031",
        "warn": "#8a5800",
        "bad": "#b3261e",
        "bar": "#1f5fa8",
        "plot": "#1f5fa8",
        "track": "#c3c9d1",
        "mark": "#8a5800",
    },
    ("#4b5663", "#0b6f68", "#2456b8", "#6b3fb0", "#a83272"),
    chrome="#e6e9ee",
    selected="#d7e3f3",
)
_PLAIN = {
    "title": Style(bold=True),
    "value": Style(bold=True),
    "header": Style(underline=True),
    "key": Style(bold=True),
    "accent": Style(bold=True),
    "warn": Style(bold=True),
    "bad": Style(bold=True, underline=True),
    "mark": Style(bold=True),
    "chrome": Style(),
    "selected": Style(reverse=True),
    "active": Style(reverse=True, bold=True),
}

PALETTES = {
    palette.name: palette
    for palette in (
        Palette("vertumnus-dark", True, "#12171e", "#c9ced6", "#8ab6e1", _DARK),
        Palette("vertumnus-light", False, "#fafbfc", "#2b323b", "#1f5fa8", _LIGHT),
        Palette("vertumnus-plain", True, "#000000", "#ffffff", "#ffffff", _PLAIN),
    )
}


@cache
def _style(palette: str, words: str) -> Style:
    styles = PALETTES[palette].styles
    combined = styles.get("", Style())
    for word in words.split():
        combined += styles.get(word, Style())
    return combined
