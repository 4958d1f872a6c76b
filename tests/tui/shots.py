"""Draws the pictures of ``docs/console/`` from the recorded run.

python tests/tui/shots.py           from the root of the repository
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from screens import MERGES_S, SPLITS_S, player_at
from vertumnus_tui.app import ConsoleApp
from vertumnus_tui.panel import Panel
from vertumnus_tui.source import ReplaySource

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "console"
SIZE = (110, 30)
PAGES = {"cluster": SPLITS_S, "reconfigurations": MERGES_S, "history": MERGES_S}


async def draw(page: str, seconds: float) -> str:
    source = ReplaySource(player_at(seconds))
    panel = Panel(source.model)
    panel.go(page)
    app = ConsoleApp(source, panel)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        return app.export_screenshot(title="vertumnusd tui")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, at in PAGES.items():
        (FOLDER / f"{name}.svg").write_text(asyncio.run(draw(name, at)), "utf-8")
