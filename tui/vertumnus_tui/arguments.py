"""The flags of ``vertumnusd tui``."""

from __future__ import annotations

import argparse
from pathlib import Path

PAGE_NAMES = ("cluster", "reconfigurations", "prefixes", "requests", "events", "history")


def add_tui(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--port", type=int, default=8000, help="of the daemon on this host")
    add("--socket", type=Path, help="its admin socket, if it is elsewhere")
    add("--url", help="by TCP instead, such as ws://10.0.0.1:8000 or wss://HOST:PORT")
    add("--admin-token-file", type=Path, metavar="FILE", help="file whose first token is sent")
    add("--page", choices=PAGE_NAMES, default="cluster", help="what is shown first")
    add("--replay", type=Path, metavar="FILE", help="play a recording instead")
    add("--at", type=float, default=0.0, metavar="S", help="replay: begin so many seconds in")
    add("--speed", type=float, default=1.0, help="replay: 0.25 to 64, in powers of two")
    add("--record", type=Path, metavar="FILE", help="write what is seen to FILE, for --replay")
    add(
        "--admin",
        action="store_true",
        help="allow to change the cluster, after asking",
    )
    add("--once", action="store_true", help="print the page as text, and leave")
    add("--json", action="store_true", help="print the cluster as JSON, and leave")
    add("--size", default="", metavar="WxH", help="of the page that --once prints")
    add("--ascii", action="store_true", help="draw with ASCII characters only")
