"""What opens above the page: help, details, a question. Their text is plain, never markup."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from vertumnus_tui.details import Facts
from vertumnus_tui.palette import Palette

LONGEST = 500  # characters of one fact

HELP: tuple[tuple[str, Facts], ...] = (
    (
        "pages",
        [
            ("1 to 6, tab", "the pages, as the second line has them"),
            ("up down, j k", "select; page up, page down, home, end"),
            ("enter", "all about the selected line"),
            ("y", "copy what is selected (OSC 52, also over ssh)"),
            ("/", "filter requests, events; -word leaves out"),
            ("s, r", "requests: sort by the next column, reverse"),
            ("w", "history: 1, 5, 15, 60 minutes"),
            ("t", "theme: dark, light, without colour"),
            ("ctrl+p", "every command by name"),
            ("ctrl+l", "draw everything again"),
            ("q", "quit"),
        ],
    ),
    (
        "replay",
        [
            ("space", "pause, go on"),
            ("+ -", "faster, slower"),
            ("< >", "10 seconds back, ahead; [ ] a minute"),
        ],
    ),
    (
        "admin (--admin)",
        [
            ("S M", "split the selected worker, merge it with its sibling"),
            ("D U", "drain the selected worker, let it serve again"),
            ("H", "hold: no split, merge or copy for half an hour; again: go on"),
            ("X", "reclaim the selected prefix from every home"),
        ],
    ),
    (
        "words",
        [
            ("CP4[0-3]", "a worker: ranks 0 to 3 run each request together"),
            ("queue s", "predicted seconds of prefill that its requests still take"),
            ("hit", "share of input tokens that were cached"),
            ("demand", "predicted seconds of all that arrived in a window; above the"),
            ("", "upper mark workers are split, below the lower one merged"),
            ("q, s, J", "placement: queue, service, cost; the least J takes a request"),
        ],
    ),
)


class Sheet(ModalScreen[None]):
    """Something to read; any of the usual keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark", "dismiss", "close", show=False),
        Binding("down,j", "scroll(1)", show=False),
        Binding("up,k", "scroll(-1)", show=False),
    ]

    def __init__(self, text: Text) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(self._text, markup=False)

    def action_scroll(self, by: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)


class Question(ModalScreen[bool]):
    """Yes or no, and no unless yes is chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes", show=False),
        Binding("n,escape,enter,q", "answer(False)", "no", show=False),
    ]

    def __init__(self, text: Text) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(self._text, markup=False)

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)


Spell = Callable[[str], str]  # makes text fit for a terminal


def help_text(palette: Palette, spell: Spell) -> Text:
    text = Text()
    for title, facts in HELP:
        text.append_text(facts_text(title, facts, palette, spell))
        text.append("\n")
    return text


def facts_text(title: str, facts: Facts, palette: Palette, spell: Spell) -> Text:
    """A title, and under it names and what is so called, side by side."""
    text = Text()
    text.append(f"{spell(title[:LONGEST])}\n", palette.style("title"))
    width = max((len(name) for name, _ in facts), default=0)
    for name, value in facts or [("", "it is gone")]:
        text.append(f"  {spell(name):<{width}}  ", palette.style("dim"))
        text.append(f"{spell(value[:LONGEST])}\n", palette.style(""))
    return text


def question_text(question: str, facts: Facts, palette: Palette, spell: Spell) -> Text:
    text = facts_text(question, facts, palette, spell)
    text.append("\n  y", palette.style("key"))
    text.append(" do it    ", palette.style("dim"))
    text.append("n", palette.style("key"))
    text.append(" leave it (enter, escape)", palette.style("dim"))
    return text
