"""In a real terminal: a tmux session driven with keys."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from screens import RECORDING, panel_at

pytestmark = [
    pytest.mark.ranks,  # starts processes
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]
PATIENCE_S = 20.0
ROOT = Path(__file__).resolve().parents[2]


class Terminal:
    def __init__(self, socket: Path, *arguments: str) -> None:
        self._socket = str(socket)
        path = os.pathsep.join([str(ROOT), str(ROOT / "tui")])
        command = [sys.executable, "-m", "vertumnusd", "tui", *arguments]
        shell = f"{subprocess.list2cmdline(command)}; echo left with $?; exec sleep 60"
        settings = [f"PYTHONPATH={path}", "COLUMNS=90", "LINES=30"]  # as some shells export them
        flags = [part for setting in settings for part in ("-e", setting)]
        self._tmux("new-session", "-d", "-x", "80", "-y", "24", *flags, shell)

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def text(self) -> str:
        return self._tmux("capture-pane", "-p")

    def until(self, words: str) -> str:
        end = time.monotonic() + PATIENCE_S
        while words not in (text := self.text()):
            assert time.monotonic() < end, f"no {words!r} in\n{text}"
            time.sleep(0.05)
        return text

    def close(self) -> None:
        self._tmux("kill-server")

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-S", self._socket, "-f", "/dev/null", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def terminal(tmp_path):
    opened = Terminal(tmp_path / "t", "--replay", str(RECORDING), "--at", "22", "--speed", "0.25")
    yield opened
    opened.close()


def test_a_session_is_driven_with_keys(terminal):
    shown = terminal.until("[1 Cluster]").splitlines()
    assert shown[2:5] == panel_at(22.0).text(80, 24).splitlines()[2:5]
    terminal.press("Space")
    terminal.until("paused")
    for key, words in (("4", "[4 Requests]"), ("Tab", "[5 Events]"), ("1", "[1 Cluster]")):
        terminal.press(key)
        terminal.until(words)
    terminal.press("?")
    terminal.until("every command by name")
    terminal.press("Escape")
    terminal.until("busy")
    terminal.resize(60, 20)
    terminal.until("too small")
    terminal.resize(130, 40)
    terminal.until("blocked by")
    terminal.press("q")
    terminal.until("left with 0")
