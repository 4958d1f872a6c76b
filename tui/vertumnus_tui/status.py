"""Where the console's picture comes from, and how fresh it is."""

from __future__ import annotations

from dataclasses import dataclass

from vertumnus_tui.glyphs import Glyphs
from vertumnus_tui.numbers import duration
from vertumnus_tui.text import Span


@dataclass(frozen=True, slots=True)
class Connecting:
    address: str


@dataclass(frozen=True, slots=True)
class Live:
    recording: str = ""  # how that goes


@dataclass(frozen=True, slots=True)
class Lost:
    """The picture is old; the next attempt is soon."""

    reason: str
    retry_s: float


@dataclass(frozen=True, slots=True)
class Replay:
    """Seconds from the beginning of the recording."""

    at_s: float
    length_s: float
    speed: float
    paused: bool
    trouble: str = ""


Status = Connecting | Live | Lost | Replay


def show(status: Status, glyphs: Glyphs) -> Span:
    match status:
        case Connecting():
            return Span(f"connecting to {status.address}", "warn")
        case Live():
            how = f", {status.recording}" if status.recording else ""
            return Span(f"{glyphs.live} live{how}", "good")
        case Lost():
            return Span(f"{glyphs.down} not connected, again in {status.retry_s:.0f}s", "bad")
        case Replay():
            how = "paused" if status.paused else f"{status.speed:g}x"
            at = f"{duration(status.at_s)} of {duration(status.length_s)}"
            if status.trouble:
                return Span(f"replay {at}, broken: {status.trouble}", "bad")
            return Span(f"replay {at}, {how}", "accent")
