"""One child process of a daemon, and the daemon's end of the socket to it, synchronously."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from vertumnusd.frames import FrameReader, write_frame
from vertumnusd.messages import Message, RankFault

PATIENCE_S = 60.0  # a message that takes longer will not come
M = TypeVar("M", bound=Message)


class Peer:
    """One child process and our end of its socket."""

    def __init__(self, module: str, inherit: Sequence[int], receives: Any) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, "--fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno(), *inherit],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        ours.settimeout(PATIENCE_S)
        self._socket = ours
        self._reader = FrameReader(ours)
        self._decode: Callable[[bytes], Message] = msgspec.msgpack.Decoder(receives).decode
        self._unread: list[Message] = []

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        write_frame(self._socket, msgspec.msgpack.encode(message))

    def send_raw(self, frame: bytes) -> None:
        write_frame(self._socket, frame)

    def receive(self, kind: type[M]) -> M:
        """The next unread message of this kind; others stay unread. An unwanted fault fails."""
        message = self.receive_any(kind)
        assert isinstance(message, kind)
        return message

    def receive_any(self, *kinds: type[Message]) -> Message:
        """The next unread message of one of these kinds."""
        for index, message in enumerate(self._unread):
            if isinstance(message, kinds):
                del self._unread[index]
                return message
        while True:
            frame = self._reader.read()
            assert frame is not None, f"the process ended before its {kinds}"
            message = self._decode(frame)
            if isinstance(message, kinds):
                return message
            assert not isinstance(message, RankFault), message
            self._unread.append(message)

    def unread(self, kind: type[M]) -> list[M]:
        """Messages of this kind which arrived while others were awaited, and were not wanted."""
        return [message for message in self._unread if isinstance(message, kind)]

    def forget(self) -> None:
        self._unread.clear()

    def end(self) -> int:
        """Close the life line; the exit status."""
        self._socket.close()
        return self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        self._socket.close()
        self.process.kill()
        self.process.wait()
