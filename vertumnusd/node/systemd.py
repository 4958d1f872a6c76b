"""The service manager's notification protocol: one datagram per message (``sd_notify(3)``)."""

from __future__ import annotations

import contextlib
import os
import socket


class Notifier:
    """Sends READY, STATUS, WATCHDOG … to the service manager; silent when there is none."""

    def __init__(self) -> None:
        address = os.environ.get("NOTIFY_SOCKET", "")
        self._socket: socket.socket | None = None
        if address:
            if address.startswith("@"):  # an abstract socket
                address = "\0" + address[1:]
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
            try:
                self._socket.connect(address)
            except OSError:
                self._socket.close()
                self._socket = None

    @property
    def watchdog_s(self) -> float:
        """Seconds within which the manager expects the next ``WATCHDOG=1``; 0 for never."""
        for_us = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        text = os.environ.get("WATCHDOG_USEC", "0")
        return int(text) / 1e6 if for_us and text.isdigit() else 0.0

    def send(self, **fields: str | int) -> None:
        """``send(READY=1, STATUS="…")``. A full or closed socket loses the message, not us."""
        if self._socket is None:
            return
        text = "\n".join(f"{key}={str(value).splitlines()[0]}" for key, value in fields.items())
        with contextlib.suppress(OSError):
            self._socket.send(text.encode())

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
