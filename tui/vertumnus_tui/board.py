"""The widget: draws lines of styled spans, and tells what was clicked. Nothing else."""

from __future__ import annotations

from rich.segment import Segment
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from vertumnus_tui.palette import Palette
from vertumnus_tui.text import Line


class Board(Widget):
    """Spans become segments with a style of the palette; markup is never read."""

    can_focus = False

    class Clicked(Message):
        """On a span with an action."""

        def __init__(self, action: str) -> None:
            super().__init__()
            self.action = action

    class Scrolled(Message):
        """The wheel, by so many lines."""

        def __init__(self, by: int) -> None:
            super().__init__()
            self.by = by

    def __init__(self, palette: Palette, **named: str) -> None:
        super().__init__(**named)  # type: ignore[arg-type]
        self._palette = palette
        self._lines: list[Line] = []
        self._strips: list[Strip] = []

    def show(self, lines: list[Line], palette: Palette) -> None:
        """Draw what is other than before."""
        if palette is not self._palette or len(lines) != len(self._lines):
            self._palette = palette
            self._lines = lines
            self._strips = [self._strip(line) for line in lines]
            self.refresh()
            return
        for n, line in enumerate(lines):
            if line != self._lines[n]:
                self._lines[n] = line
                self._strips[n] = self._strip(line)
                self.refresh_line(n)

    def refresh_line(self, n: int) -> None:
        self.refresh(Region(0, n, self.size.width, 1))

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y >= len(self._strips):
            return Strip.blank(width, self._palette.style(""))
        return self._strips[y].adjust_cell_length(width, self._palette.style(""))

    def _strip(self, line: Line) -> Strip:
        style = self._palette.style
        segments = [Segment(span.text, style(span.style)) for span in line if span.text]
        return Strip(segments, sum(len(span.text) for span in line))

    def on_click(self, event: events.Click) -> None:
        if action := self._action_at(event.x, event.y):
            self.post_message(self.Clicked(action))

    def on_mouse_scroll_down(self) -> None:
        self.post_message(self.Scrolled(3))

    def on_mouse_scroll_up(self) -> None:
        self.post_message(self.Scrolled(-3))

    def _action_at(self, x: int, y: int) -> str:
        if y >= len(self._lines):
            return ""
        for span in self._lines[y]:
            if x < len(span.text):
                return span.action
            x -= len(span.text)
        return ""
