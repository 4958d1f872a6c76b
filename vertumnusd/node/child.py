"""One child process of the daemon, and the socket to it, which is its life line.

Children (ranks and the host helper) read msgpack frames from their socket: a 4-byte little-endian
length, then that many bytes. They end when the socket closes, so they never outlive the daemon.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable

import msgspec
import structlog
import trio

from vertumnusd.node.spawn import spawn

OUTBOX_MESSAGES = 4096
RECEIVE_BYTES = 1 << 18
MAX_FRAME_BYTES = 64 << 20

log = structlog.get_logger("vertumnusd.child")
_encode = msgspec.msgpack.Encoder().encode


class Child:
    """One child process and the socket to it, which is its life line."""

    def __init__(self, module: str, inherit: list[int]) -> None:
        self._process, ours = spawn(module, inherit)
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        self._outbox, self._to_send = trio.open_memory_channel[bytes](OUTBOX_MESSAGES)

    def send(self, message: msgspec.Struct) -> None:
        """Put ``message`` into the outbox. A child that lets it fill up is stuck: it is killed."""
        try:
            self._outbox.send_nowait(_encode(message))
        except trio.WouldBlock:
            log.error("rank stuck: outbox full, killing it", pid=self.pid)
            self.kill()

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Exit status, once the process ended."""
        while (status := self._process.poll()) is None:
            await trio.lowlevel.wait_readable(self._pidfd)
        return status

    async def write(self) -> None:
        """Writer task: frames from the outbox to the child, until it is gone.

        What waits leaves in one write: a write wakes the child up, and that is what it costs. It
        gives way once before, so that a token which came with the same news leaves first.
        """
        try:
            async for frame in self._to_send:
                await trio.lowlevel.checkpoint()
                frames = [frame]
                with contextlib.suppress(trio.WouldBlock, trio.EndOfChannel):
                    while True:
                        frames.append(self._to_send.receive_nowait())
                data = b"".join(len(f).to_bytes(4, "little") + f for f in frames)
                await self._stream.send_all(data)
        except trio.BrokenResourceError:
            pass  # its end is seen by ``wait``

    async def read(self, handle: Callable[[bytes], None]) -> None:
        """Reader task: hands every frame to ``handle``, until the child is gone."""
        buffer = bytearray()
        while True:
            try:
                chunk = await self._stream.receive_some(RECEIVE_BYTES)
            except trio.BrokenResourceError:
                return
            if not chunk:
                return
            buffer += chunk
            while len(buffer) >= 4:
                length = int.from_bytes(buffer[:4], "little")
                if length > MAX_FRAME_BYTES:
                    log.error("rank talks nonsense, killing it", pid=self.pid, frame_bytes=length)
                    self.kill()
                    return
                if len(buffer) < 4 + length:
                    break
                frame = bytes(buffer[4 : 4 + length])
                del buffer[: 4 + length]
                handle(frame)

    def end(self) -> None:
        """Kill and reap; free every descriptor."""
        self.kill()
        self._process.wait()
        os.close(self._pidfd)
        self._stream.socket.close()
        self._outbox.close()
