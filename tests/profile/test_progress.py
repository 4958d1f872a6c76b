"""One moving line on a terminal, lines on a pipe."""

from __future__ import annotations

import io

import pytest

from vertumnusd.profile.progress import WIDTH, Progress, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_that_is_written_over_and_wiped():
    terminal = Terminal()
    progress = Progress(terminal)
    progress.show("first")
    progress.show("x" * 200)
    progress.say("done")
    assert terminal.getvalue() == f"\r\033[Kfirst\r\033[K{'x' * WIDTH}\r\033[Kdone\n"


def test_a_pipe_gets_lines_without_control_characters_and_not_too_many():
    pipe = io.StringIO()
    progress = Progress(pipe)
    for n in range(5):
        progress.show(f"line {n}")
    progress.say("done")
    assert pipe.getvalue() == "line 0\ndone\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"),
        (0.4, "0 s"),
        (89, "89 s"),
        (90, "2 min"),
        (3500, "58 min"),
        (4800, "1 h 20 min"),
    ],
)
def test_durations_are_as_exact_as_one_wants_to_know(seconds, text):
    assert duration(seconds) == text
