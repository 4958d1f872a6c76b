"""The console as a Textual app: keys and clicks to the panel, its lines to the board."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import ClassVar

from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.screen import Screen
from textual.widgets import Input

from vertumnus_tui.admin import AdminError, action_on, carry_out, consequences, plan
from vertumnus_tui.board import Board
from vertumnus_tui.details import details
from vertumnus_tui.dialogs import LONGEST, Question, Sheet, facts_text, help_text, question_text
from vertumnus_tui.glyphs import ASCII
from vertumnus_tui.link import Address
from vertumnus_tui.palette import PALETTES, Palette
from vertumnus_tui.panel import NAMES, ORDERS, PAGES, Panel
from vertumnus_tui.source import LiveSource, ReplaySource, Source
from vertumnus_tui.text import plain

PAINT_S = 0.25
SAID_S = 3.0  # how long a short message stays
SEEK_S, LONG_SEEK_S = 10.0, 60.0


def _key(keys: str, action: str, description: str = "") -> Binding:
    return Binding(keys, action, description, show=False)


class ConsoleApp(App[None]):
    """Paints at most four times a second, and at once after a key."""

    AUTO_FOCUS = None
    CSS = """
    Screen { background: $background; }
    Board { width: 100%; height: 1fr; }
    #filter { dock: bottom; height: 1; border: none; padding: 0 1; display: none; }
    #filter.open { display: block; }
    Sheet, Question { align: center middle; background: $background 60%; }
    Sheet VerticalScroll, Question VerticalScroll {
        width: auto; max-width: 96%; height: auto; max-height: 90%;
        border: round $primary; padding: 0 2; background: $background;
    }
    Sheet Static, Question Static { width: auto; max-width: 86vw; height: auto; }
    SearchIcon { display: none; }
    CommandPalette #--input, CommandPalette CommandList { border: none; }
    App.-ascii VerticalScroll, App.-ascii Toast { border: ascii $primary; }
    App.-ascii * { scrollbar-size: 0 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(_key(str(n), f"go('{name}')") for n, name in enumerate(NAMES, 1)),
        Binding("tab", "turn(1)", show=False, priority=True),  # a screen has its own use for it
        Binding("shift+tab", "turn(-1)", show=False, priority=True),
        _key("right,l", "turn(1)"),
        _key("left,h", "turn(-1)"),
        _key("down,j", "move(1)"),
        _key("up,k", "move(-1)"),
        _key("pagedown", "page(1)"),
        _key("pageup", "page(-1)"),
        _key("home,g", "end(True)"),
        _key("end,G", "end(False)"),
        _key("enter", "details"),
        _key("y", "copy"),
        _key("slash", "filter"),
        _key("escape", "clear_filter"),
        _key("s", "sort"),
        _key("r", "reverse"),
        _key("w", "window"),
        _key("t", "theme"),
        _key("question_mark", "help"),
        _key("ctrl+l", "redraw"),
        _key("space", "pause"),
        _key("plus,equals_sign", "speed(True)"),
        _key("minus", "speed(False)"),
        _key("full_stop,greater_than_sign", f"seek({SEEK_S})"),
        _key("comma,less_than_sign", f"seek({-SEEK_S})"),
        _key("right_square_bracket", f"seek({LONG_SEEK_S})"),
        _key("left_square_bracket", f"seek({-LONG_SEEK_S})"),
        *(_key(key, f"ask('{kind}')") for key, kind in ORDERS.items()),
        _key("q", "quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(self, source: Source, panel: Panel) -> None:
        super().__init__()
        self.panel = panel
        self._source = source
        self._seen: tuple[object, ...] = ()
        self._palette = PALETTES[
            "vertumnus-plain" if "NO_COLOR" in os.environ else "vertumnus-dark"
        ]
        for palette in PALETTES.values():
            self.register_theme(palette.theme)
        self.theme = self._palette.name
        self.set_class(panel.glyphs is ASCII, "-ascii")

    def compose(self) -> ComposeResult:
        yield Board(self._palette, id="board")
        yield Input(id="filter", placeholder="words that must be there, -words that must not")

    def on_mount(self) -> None:
        self.run_worker(self._source.run(), exclusive=True)
        self.set_interval(PAINT_S, self._paint_if_changed)
        self.query_one("#filter").can_focus = False

    def on_resize(self) -> None:
        self.call_after_refresh(self.paint)

    # --- painting

    def paint(self) -> None:
        board = self.screen_stack[0].query_one(Board)
        width, height = self.size
        self.panel.model, self.panel.status = self._source.model, self._source.status
        lines = self.panel.screen(width, height)
        board.show(lines, self._palette)
        self._seen = self._sight()

    def _paint_if_changed(self) -> None:
        if self._sight() != self._seen:
            self.paint()

    def _sight(self) -> tuple[object, ...]:
        return (id(self._source.model), self._source.model.revision, self._source.status, self.size)

    # --- what the operator does

    def on_board_clicked(self, message: Board.Clicked) -> None:
        verb, _, what = message.action.partition(":")
        if verb == "page":
            self.action_go(what)
        elif verb == "row":
            self.panel.select(int(what))
            self.paint()
        else:
            self.call_later(self.run_action, CLICKS.get(verb, verb))

    def on_board_scrolled(self, message: Board.Scrolled) -> None:
        self.action_move(message.by)

    def action_go(self, name: str) -> None:
        self.panel.go(name)
        self.paint()

    def action_turn(self, by: int) -> None:
        self.panel.turn(by)
        self.paint()

    def action_move(self, by: int) -> None:
        self.panel.move(by)
        self.paint()

    def action_page(self, pages: int) -> None:
        self.panel.scroll(pages)
        self.paint()

    def action_end(self, first: bool) -> None:
        self.panel.to_end(first)
        self.paint()

    def action_sort(self) -> None:
        self.panel.next_sort()
        self.paint()

    def action_reverse(self) -> None:
        self.panel.reverse()
        self.paint()

    def action_window(self) -> None:
        self.panel.next_window()
        self.paint()

    def action_redraw(self) -> None:
        self.refresh(layout=True)
        self.paint()

    def action_theme(self) -> None:
        names = list(PALETTES)
        self._use(PALETTES[names[(names.index(self._palette.name) + 1) % len(names)]])

    def _use(self, palette: Palette) -> None:
        self._palette = palette
        self.theme = palette.name
        self.paint()

    def action_help(self) -> None:
        self.push_screen(Sheet(help_text(self._palette, self.panel.spell)))

    def action_details(self) -> None:
        if key := self.panel.selected:
            title, facts = details(self.panel.model, key)
            self.push_screen(Sheet(facts_text(title, facts, self._palette, self.panel.spell)))

    def action_copy(self) -> None:
        """The name of what is selected, or without a selection the page."""
        _, _, name = self.panel.selected.partition(" ")
        text = name or "\n".join(plain(each).rstrip() for each in self.panel.screen(*self.size))
        self.copy_to_clipboard(text)
        self.notify("copied", timeout=1.5, markup=False)

    # --- filter

    def action_filter(self) -> None:
        if not self.panel.filters:
            return
        field = self.query_one("#filter", Input)
        field.value = self.panel.filter
        field.add_class("open")
        field.can_focus = True
        field.focus()

    def action_clear_filter(self) -> None:
        self._close_filter("")

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.has_class("open"):
            self.panel.set_filter(event.value)
            self.paint()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._close_filter(event.value)

    def _close_filter(self, text: str) -> None:
        field = self.query_one("#filter", Input)
        field.remove_class("open")
        self.set_focus(None)
        field.can_focus = False
        self.panel.set_filter(text)
        self.paint()

    # --- replay

    def action_pause(self) -> None:
        if isinstance(self._source, ReplaySource):
            self._source.player.paused = not self._source.player.paused
            self.paint()

    def action_speed(self, faster: bool) -> None:
        if isinstance(self._source, ReplaySource):
            self._source.player.change_speed(faster)
            self.paint()

    def action_seek(self, by_s: float) -> None:
        if isinstance(self._source, ReplaySource):
            self._source.player.seek(self._source.player.at_s + by_s)
            self.paint()

    # --- palette

    def action_command_palette(self) -> None:
        self.push_screen(CommandPalette(placeholder="a command", id="--command-palette"))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        for name, (title, _) in PAGES.items():
            yield SystemCommand(
                title, f"go to page {title}", lambda name=name: self.action_go(name)
            )
        for palette in PALETTES.values():
            title = f"Theme {palette.name.removeprefix('vertumnus-')}"
            yield SystemCommand(title, "colours", lambda palette=palette: self._use(palette))
        yield SystemCommand("Help", "keys and words", self.action_help)
        yield SystemCommand("Filter", "requests and events", self.action_filter)
        yield SystemCommand("Window", "how much history is shown", self.action_window)
        yield SystemCommand("Quit", "leave the console", self.exit)

    # --- admin

    def action_ask(self, kind: str) -> None:
        """Plan, ask, and do it after a yes; all beside the painting."""
        if isinstance(self._source, LiveSource) and self.panel.admin:
            self.run_worker(self._ask(self._source.address, kind), group="admin")
        else:
            self._say("read-only: start the console with --admin to change the cluster")

    async def _ask(self, address: Address, kind: str) -> None:
        model, selected = self._source.model, self.panel.selected
        try:
            action = action_on(kind, selected, model.cluster, model.t)
            facts = consequences(action, await plan(address, action), model.cluster)
            question = Question(question_text(action.title, facts, self._palette, self.panel.spell))
            if not await self.push_screen_wait(question):
                return
            self._say(f"{action.kind}: asked for")
            await carry_out(address, action)
            self._say(f"{action.kind}: done")
        except AdminError as error:
            self._say(f"{kind}: {error}")

    def _say(self, text: str) -> None:
        self.notify(self.panel.spell(text[:LONGEST]), timeout=SAID_S, markup=False)


CLICKS = {
    "faster": "speed(True)",
    "ahead": f"seek({SEEK_S})",
    **{kind: f"ask('{kind}')" for kind in ORDERS.values()},
}
