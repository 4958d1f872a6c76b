"""The whole screen, without a terminal: what is shown for a model, and what keys and clicks do.

┌ title: model, composition, term, epoch ····· automatic or held, live or lost ┐
│ tabs                                                                         │
│ page: a head that stays, a body that scrolls                                 │
└ keys ────────────────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vertumnus_tui.glyphs import ASCII, UNICODE, to_ascii
from vertumnus_tui.model import Model
from vertumnus_tui.numbers import duration
from vertumnus_tui.page import WINDOWS_S, Cursor, Page, View, room_for, screenful
from vertumnus_tui.pages import cluster, events, history, prefixes, reconfigurations, requests
from vertumnus_tui.status import Connecting, Replay, Status, show
from vertumnus_tui.text import Line, Span, cut, line, plain, safe, spread

LEAST_WIDTH, LEAST_HEIGHT = 80, 24
CHROME = 3  # lines that are not of the page

PAGES: dict[str, tuple[str, Callable[[Model, View], Page]]] = {
    "cluster": ("Cluster", cluster.page),
    "reconfigurations": ("Reconfigurations", reconfigurations.page),
    "prefixes": ("Prefixes", prefixes.page),
    "requests": ("Requests", requests.page),
    "events": ("Events", events.page),
    "history": ("History", history.page),
}
NAMES = tuple(PAGES)
FILTERED = ("requests", "events")
ORDERS = {"S": "split", "M": "merge", "D": "drain", "U": "undrain", "H": "hold", "X": "reclaim"}


class Panel:
    """State of the screen. Every change is one of its methods."""

    def __init__(self, model: Model, *, ascii: bool = False, admin: bool = False) -> None:
        self.model = model
        self.status: Status = Connecting("")
        self.admin = admin
        self.name = NAMES[0]
        self.glyphs = ASCII if ascii else UNICODE
        self._ascii = ascii
        self._views = {name: View(glyphs=self.glyphs) for name in NAMES}
        self._cursors = {name: Cursor() for name in NAMES}
        self._size = (LEAST_WIDTH, LEAST_HEIGHT)
        self._page = Page([])

    # --- what is seen

    def screen(self, width: int, height: int) -> list[Line]:
        """``height`` lines of ``width`` cells."""
        if width < LEAST_WIDTH or height < LEAST_HEIGHT:
            return self._drawn(_too_small(width, height))
        self._size = (width, height)
        if not self.model.known:
            return self._drawn(self._nothing(width, height))
        view = self.view
        self._page = PAGES[self.name][1](self.model, view)
        self._settle()
        body = screenful(self._page, self._cursors[self.name], view)
        return self._drawn([self._title(), self._tabs(), *body, self._footer()])

    @property
    def view(self) -> View:
        width, height = self._size
        return replace(self._views[self.name], width=width, height=height - CHROME)

    @property
    def selected(self) -> str:
        """What the selected line is about, such as ``worker CP4[0-3]``; "" if nothing."""
        return self._cursors[self.name].key

    @property
    def filters(self) -> bool:
        """Whether this page can be filtered."""
        return self.name in FILTERED

    @property
    def filter(self) -> str:
        return self._views[self.name].filter

    # --- what is done

    def go(self, name: str) -> None:
        if name in PAGES:
            self.name = name

    def turn(self, by: int) -> None:
        self.go(NAMES[(NAMES.index(self.name) + by) % len(NAMES)])

    def move(self, by: int) -> None:
        """Select another line, by so many."""
        self._cursors[self.name] = self._cursor.move(self._page, self._room, by)

    def scroll(self, pages: int) -> None:
        self.move(pages * max(1, self._room - 1))

    def select(self, row: int) -> None:
        self._cursors[self.name] = self._cursor.go(self._page, self._room, row)

    def to_end(self, first: bool) -> None:
        self.select(0 if first else len(self._page.body) - 1)

    def set_filter(self, text: str) -> None:
        if self.filters:
            self._change(filter=text)

    def next_sort(self) -> None:
        self._change(sort=(self._views[self.name].sort + 1) % len(requests.SORTS))

    def reverse(self) -> None:
        self._change(descending=not self._views[self.name].descending)

    def next_window(self) -> None:
        """Of what curves show, everywhere."""
        at = WINDOWS_S.index(self._views[self.name].window_s)
        window_s = WINDOWS_S[(at + 1) % len(WINDOWS_S)]
        self._views = {name: replace(view, window_s=window_s) for name, view in self._views.items()}

    # --- parts

    @property
    def _cursor(self) -> Cursor:
        return self._cursors[self.name]

    @property
    def _room(self) -> int:
        return room_for(self._page, self._size[1] - CHROME)

    def _settle(self) -> None:
        self._cursors[self.name] = self._cursor.settle(self._page, self._room)

    def _change(self, **changes: object) -> None:
        self._views[self.name] = replace(self._views[self.name], **changes)  # type: ignore[arg-type]

    def _title(self) -> Line:
        seen = self.model.cluster
        left = line(
            Span(" Vertumnus ", "active"),
            Span(f" {seen.composition}", "title"),
            Span("  term ", "dim"),
            str(seen.term),
            Span("  epoch ", "dim"),
            str(seen.epoch),
            Span(f"  {seen.model}", "dim"),
            Span(f"  {seen.unready}" if seen.unready else "", "warn"),
        )
        right = line(self._mode(), Span("  "), show(self.status, self.glyphs), Span(" "))
        return _chrome(spread(left, right, self._size[0]))

    def _mode(self) -> Span:
        seen = self.model.cluster.adaptation
        if seen.held_until is not None:
            return Span(f"  held {duration(seen.held_until - self.model.t)}", "warn")
        return Span("  automatic" if seen.window_ends_at is not None else "  by hand", "dim")

    def _tabs(self) -> Line:
        spans: list[Span] = []
        for n, (name, (title, _)) in enumerate(PAGES.items(), 1):
            here = name == self.name
            text = f"[{n} {title}]" if here else f" {n} {title} "
            spans.append(Span(text, "title" if here else "dim", f"page:{name}"))
        if self.filter:
            spans.append(Span(f"  filter: {self.filter}", "warn"))
        return cut(tuple(spans), self._size[0])

    def _part_shown(self) -> str:
        """Which lines of a body that does not fit."""
        rows, top, room = len(self._page.body), self._cursor.top, self._room
        return f" {top + 1}-{min(rows, top + room)} of {rows} " if rows > room else ""

    def _footer(self) -> Line:
        keys = [("?", "help", "help"), ("q", "quit", "quit")]
        if any(self._page.keys):
            keys.append(("enter", "details", "details"))
        if self.filters:
            keys.append(("/", "filter", "filter"))
        if self.name == "requests":
            keys += [("s", "sort", "sort"), ("r", "reverse", "reverse")]
        if self.name in ("history", "cluster"):
            keys.append(("w", "window", "window"))
        if isinstance(self.status, Replay):
            keys += [
                ("space", "pause", "pause"),
                ("+ -", "speed", "faster"),
                ("< >", "seek", "ahead"),
            ]
        elif self.admin:
            keys += [(key, kind, kind) for key, kind in ORDERS.items()]
        spans: list[Span] = []
        for key, word, action in keys:
            spans += [Span(f" {key}", "key", action), Span(f" {word} ", "dim", action)]
        part = Span(self._part_shown(), "dim")
        return _chrome(spread(tuple(spans), (part,), self._size[0]))

    def _nothing(self, width: int, height: int) -> list[Line]:
        text = (Span("  "), show(self.status, self.glyphs))
        return _filled([(), text, (), line("  q quits")], width, height)

    def _drawn(self, lines: list[Line]) -> list[Line]:
        """What may go to a terminal."""
        spell = to_ascii if self._ascii else safe
        return [tuple(Span(spell(text), style, act) for text, style, act in row) for row in lines]

    def text(self, width: int, height: int) -> str:
        """The screen as plain text."""
        return "\n".join(plain(each).rstrip() for each in self.screen(width, height)) + "\n"


def _chrome(spans: Line) -> Line:
    return tuple(span._replace(style=f"{span.style} chrome".strip()) for span in spans)


def _too_small(width: int, height: int) -> list[Line]:
    lines = [
        line(Span("too small", "warn")),
        line(f"this is {width}x{height},"),
        line(f"{LEAST_WIDTH}x{LEAST_HEIGHT} is needed"),
        line("q quits"),
    ]
    return _filled(lines, width, height)


def _filled(lines: list[Line], width: int, height: int) -> list[Line]:
    shown = [cut(each, width) for each in lines[:height]]
    return [*shown, *[cut((), width)] * (height - len(shown))]
