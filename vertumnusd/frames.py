"""Frames on a blocking stream socket: a 4-byte little-endian length, then that many bytes.

Ranks and the host helper talk to their daemon in such frames, one msgpack message each.
"""

from __future__ import annotations

import socket

LENGTH_BYTES = 4
MAX_FRAME_BYTES = 64 << 20  # a Begin of 8 M tokens fits twice


class FrameError(Exception):
    """The peer announced a frame that is too long to be one of ours."""


class FrameReader:
    """Reads whole frames; one reader per socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def read(self) -> bytes | None:
        """The next frame, or None once the peer is gone (half a frame is nothing)."""
        header = self._read_exactly(LENGTH_BYTES)
        if header is None:
            return None
        length = int.from_bytes(header, "little")
        if length > MAX_FRAME_BYTES:
            raise FrameError(f"frame of {length} bytes; at most {MAX_FRAME_BYTES} are allowed")
        return self._read_exactly(length)

    def _read_exactly(self, count: int) -> bytes | None:
        frame = bytearray(count)
        rest = memoryview(frame)
        while rest:
            try:
                received = self._sock.recv_into(rest)
            except ConnectionResetError:
                return None
            if received == 0:
                return None
            rest = rest[received:]
        return bytes(frame)


def write_frame(sock: socket.socket, frame: bytes) -> None:
    """Send one whole frame. Callers with several threads hold a lock around it."""
    if len(frame) > MAX_FRAME_BYTES:
        raise FrameError(f"frame of {len(frame)} bytes; at most {MAX_FRAME_BYTES} are allowed")
    sock.sendall(len(frame).to_bytes(LENGTH_BYTES, "little") + frame)
