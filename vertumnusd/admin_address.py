"""Where a node's admin socket is: the daemon makes it there, commands and consoles look there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

SYSTEM_FOLDER = "/run/vertumnusd"


def admin_socket_path(configured: str, port: int) -> Path:
    """``configured``, or ``vertumnusd-PORT.sock`` in the folder for sockets of this user.

    That is systemd's ``RuntimeDirectory`` for the unit, the same folder for root, for others
    ``XDG_RUNTIME_DIR`` or a folder of their own beside other temporary files.
    """
    return Path(configured) if configured else _folder() / f"vertumnusd-{port}.sock"


def _folder() -> Path:
    folder = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    if not folder and os.geteuid() == 0:
        folder = SYSTEM_FOLDER
    own = f"{tempfile.gettempdir()}/vertumnusd-{os.geteuid()}"
    return Path(folder or os.environ.get("XDG_RUNTIME_DIR") or own)
