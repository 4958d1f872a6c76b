"""Starting a process of ours that talks over a socket: ranks and the host helper."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence


def spawn(module: str, inherit: Sequence[int]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Run ``module`` with the files ``inherit`` open; our end of its socket is its life line."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", module, "--fd", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno(), *inherit],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # a terminal's ^C is for us; we end the process
        )
    return process, ours
