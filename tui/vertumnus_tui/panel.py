"""The whole screen, without a terminal: what is shown for a model, and what keys and clicks do.

┌ title: model, composition, term, epoch ····· automatic or held, live or lost ┐
│ tabs                                                                         │
│ health: what is wrong, if anything is                                        │
│ page: a head that stays, a body that scrolls                                 │
└ keys ────────────────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vertumnus_tui.alarms import alarms
from vertumnus_tui.glyphs import ASCII, UNICODE, to_ascii
from vertumnus_tui.model import Model
from vertumnus_tui.numbers import duration
from vertumnus_tui.page import (
    LEAST_HEIGHT,
    LEAST_WIDTH,
    WINDOWS_S,
    Cursor,
    Page,
    View,
    room_for,
    screenful,
)
from vertumnus_tui.pages import cluster, events, history, prefixes, reconfigurations, requests
from vertumnus_tui.status import Connecting, Lost, Replay, Status, show
from vertumnus_tui.text import Line, Span, cut, length, line, plain, safe, spread

CHROME = 3  # lines that are not of the page
ALARMS_SHOWN = 3

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
Key = tuple[str, str, str]  # what is pressed, what it does, the action of a click
ORDERS = {"S": "split", "M": "merge", "D": "drain", "U": "undrain", "H": "hold", "X": "reclaim"}


class Panel:
    """State of the screen. Every change is one of its methods."""

    def __init__(self, model: Model, *, ascii: bool = False, admin: bool = False) -> None:
        self.model = model
        self.status: Status = Connecting("")
        self.admin = admin
        self.name = NAMES[0]
        self.glyphs = ASCII if ascii else UNICODE
        self.spell = to_ascii if ascii else safe
        self._views = {name: View(glyphs=self.glyphs) for name in NAMES}
        self._cursors = {name: Cursor() for name in NAMES}
        self._size = (LEAST_WIDTH, LEAST_HEIGHT)
        self._height = LEAST_HEIGHT - CHROME  # of the page
        self._page = Page([])

    # --- what is seen

    def screen(self, width: int, height: int) -> list[Line]:
        """``height`` lines of ``width`` cells."""
        if width < LEAST_WIDTH or height < LEAST_HEIGHT:
            return self._drawn(_too_small(width, height))
        self._size = (width, height)
        if not self.model.known:
            return self._drawn(self._nothing(width, height))
        banner = self._banner()
        self._height = height - CHROME - len(banner)
        view = self.view
        self._page = PAGES[self.name][1](self.model, view)
        self._settle()
        body = screenful(self._page, self._cursors[self.name], view)
        return self._drawn([self._title(), self._tabs(), *banner, *body, self._footer()])

    @property
    def view(self) -> View:
        return replace(self._views[self.name], width=self._size[0], height=self._height)

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
        return room_for(self._page, self._height)

    def _settle(self) -> None:
        self._cursors[self.name] = self._cursor.settle(self._page, self._room)

    def _change(self, **changes: object) -> None:
        self._views[self.name] = replace(self._views[self.name], **changes)  # type: ignore[arg-type]

    def _title(self) -> Line:
        """At the left as much as there is room for, the most important first."""
        seen = self.model.cluster
        right = line(self._mode(), Span("  "), show(self.status, self.glyphs), Span(" "))
        left = line(Span(" Vertumnus ", "active"), Span(f" {seen.composition}", "title"))
        facts = (("term", seen.term), ("epoch", seen.epoch), ("", seen.model), ("on", seen.node))
        for name, value in facts:
            more = line(Span(f"  {name} " if name else "  ", "dim"), str(value))
            if value == "" or length((*left, *more, *right)) > self._size[0]:
                break
            left = (*left, *more)
        return _chrome(spread(left, right, self._size[0]))

    def _banner(self) -> list[Line]:
        """What is wrong: on the first page some of it, on every other one the gravest."""
        first = self.name == NAMES[0]
        found = alarms(self.model, self.status)
        if not found:
            return [self._all_well()] if first else []
        shown = found[: ALARMS_SHOWN if first else 1]
        left_out = len(found) - len(shown)
        lines = []
        for n, alarm in enumerate(shown, 1):
            title = Span(f"{'  health' if n == 1 else '':<10}", "title")
            text = Span(f"{alarm.mark} {alarm.text}", alarm.style, f"page:{NAMES[0]}")
            more = f"  and {left_out} more " if left_out and n == len(shown) else ""
            lines.append(spread(line(title, text), line(Span(more, "dim")), self._size[0]))
        return lines

    def _all_well(self) -> Line:
        seen = self.model.cluster
        serving = sum(worker.state == "serving" for worker in seen.workers)
        ranks = sum(len(worker.ranks) for worker in seen.workers)
        text = f"{ranks} ranks up, {serving} of {len(seen.workers)} workers serve"
        health = line(
            Span("  health  ", "title"), Span("+ all well", "good"), Span(f": {text}", "dim")
        )
        return cut(health, self._size[0])

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
        spans, part = _keys(keys), Span(self._part_shown(), "dim")
        more, short = self._more_keys()
        if more:
            whole = (*spans, *_keys(more))
            spans = whole if length((*whole, part)) <= self._size[0] else (*spans, *_keys([short]))
        return _chrome(spread(spans, (part,), self._size[0]))

    def _more_keys(self) -> tuple[list[Key], Key]:
        """Of this kind of source, each by itself, or all in few characters."""
        if isinstance(self.status, Replay):
            pause, speed, seek = ("space", "pause"), ("+ -", "speed"), ("< >", "seek")
            keys = [(*pause, "pause"), (*speed, "faster"), (*seek, "ahead")]
            return keys, ("space + - < >", "replay", "help")
        orders = [(key, kind, kind) for key, kind in ORDERS.items() if self.admin]
        return orders, (" ".join(ORDERS), "change", "help")

    def _nothing(self, width: int, height: int) -> list[Line]:
        text = line("  ", show(self.status, self.glyphs))
        why = self.status.reason if isinstance(self.status, Lost) else ""
        return _filled([(), text, line(f"  {why}"), (), line("  q quits")], width, height)

    def _drawn(self, lines: list[Line]) -> list[Line]:
        """What may go to a terminal."""
        spell = self.spell
        return [tuple(Span(spell(text), style, act) for text, style, act in row) for row in lines]

    def text(self, width: int, height: int) -> str:
        """The screen as plain text."""
        return "\n".join(plain(each).rstrip() for each in self.screen(width, height)) + "\n"


def _keys(keys: list[Key]) -> Line:
    spans: list[Span] = []
    for key, word, action in keys:
        spans += [Span(f" {key}", "key", action), Span(f" {word} ", "dim", action)]
    return tuple(spans)


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
