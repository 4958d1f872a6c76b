"""The recorded run on every page, in two sizes: as it is, and as it was kept in ``goldens/``.

python tests/tui/screens.py         keeps it as it is now; look at what git says has changed
"""

from __future__ import annotations

from pathlib import Path

from vertumnus_tui.panel import NAMES, Panel
from vertumnus_tui.playback import Player, read_recording
from vertumnus_tui.source import ReplaySource

HERE = Path(__file__).parent
RECORDING = HERE / "swing.jsonl.gz"
GOLDENS = HERE / "goldens"
SIZES = ((80, 24), (160, 50))
SPLITS_S, MERGES_S = 22.0, 102.0  # a split adopts, a merge drains
SECONDS = {"cluster": SPLITS_S, "requests": SPLITS_S}


def player_at(seconds: float) -> Player:
    player = Player(read_recording(RECORDING))
    player.paused = True
    player.seek(seconds)
    return player


def panel_at(seconds: float, page: str = "cluster", **options: bool) -> Panel:
    source = ReplaySource(player_at(seconds))
    panel = Panel(source.model, **options)
    panel.status = source.status
    panel.go(page)
    return panel


def text(page: str, size: tuple[int, int]) -> str:
    return panel_at(SECONDS.get(page, MERGES_S), page).text(*size)


def golden(page: str, size: tuple[int, int]) -> Path:
    return GOLDENS / f"{page}_{size[0]}x{size[1]}.txt"


if __name__ == "__main__":
    GOLDENS.mkdir(exist_ok=True)
    for name in NAMES:
        for each in SIZES:
            golden(name, each).write_text(text(name, each), "utf-8")
