"""A rank's end of the socket to its daemon: messages in by one thread, out by any.

The socket is the rank's life line. When it closes, the daemon is gone, and the process ends at
once, whatever its other threads are doing. What the rank cannot handle (a message it cannot read,
an error nobody caught) it reports as a ``RankFault``, and ends too: the daemon starts a new one.
"""

from __future__ import annotations

import os
import socket
import threading
import traceback
from collections.abc import Callable
from typing import NoReturn

import msgspec

from vertumnusd.frames import FrameReader, write_frame
from vertumnusd.messages import FromRank, RankFault, RankStart, ToRank


class ProtocolError(Exception):
    """The daemon sent a message that makes no sense to this rank."""


class Link:
    """Reads ``ToRank`` and writes ``FromRank`` messages."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = FrameReader(sock)
        self._decode = msgspec.msgpack.Decoder(ToRank).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._sending = threading.Lock()
        self._rank = -1

    def read_start(self) -> RankStart:
        """The first message. Raises ProtocolError if it is another one."""
        start = self._read()
        if not isinstance(start, RankStart):
            raise ProtocolError(f"RankStart must come first, not {type(start).__name__}")
        self._rank = start.rank
        return start

    def listen(self, receive: Callable[[ToRank], None]) -> None:
        """Start the control thread, which calls ``receive`` with every further message."""
        threading.Thread(target=self._listen, args=(receive,), name="control", daemon=True).start()

    def send(self, message: FromRank) -> None:
        frame = self._encode(message)
        try:
            with self._sending:
                write_frame(self._sock, frame)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)

    def fault(self, error: BaseException) -> NoReturn:
        """Report what broke this rank, and end it.

        Not by ``sys.exit``: tearing down a broken process group may wait for ranks that are gone.
        """
        traceback.print_exception(error)
        self.send(RankFault(self._rank, f"{type(error).__name__}: {error}"))
        os._exit(1)

    def _listen(self, receive: Callable[[ToRank], None]) -> None:
        try:
            while True:
                receive(self._read())
        except Exception as error:
            self.fault(error)

    def _read(self) -> ToRank:
        frame = self._reader.read()
        if frame is None:
            os._exit(0)
        return self._decode(frame)
