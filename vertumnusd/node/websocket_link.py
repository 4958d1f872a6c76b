"""One websocket after its handshake: whole messages in and out, with limits.

wsproto decides what the frames mean. Extensions are not accepted: compressed messages could grow a
thousandfold on arrival, and compression would delay tokens. One task may receive; any may send.
"""

from __future__ import annotations

import math
from typing import NoReturn

import trio
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.frame_protocol import CloseReason

from vertumnusd.node.limits import Limits

READ_BYTES = 64 * 1024


class LinkClosed(Exception):
    """The websocket is over, whoever ended it and why ever."""

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(f"{code} {reason}")
        self.code = code
        self.reason = reason


class Link:
    """The server's side of one websocket."""

    def __init__(self, stream: trio.abc.Stream, limits: Limits, received: bytes) -> None:
        """``received``: what came behind the handshake already."""
        self._stream = stream
        self._limits = limits
        self._protocol = Connection(ConnectionType.SERVER, trailing_data=received)
        self._sending = trio.Lock()
        self._gone = False
        self._waiting = trio.CancelScope()  # for bytes to come
        self._close_by = math.inf
        self._parts: list[str] = []
        self._byte_parts: list[bytes] = []
        self._size = 0
        self._fragments = 0

    async def receive(self) -> str | bytes:
        """The next message. Pings are answered on the way. Raises :class:`LinkClosed`."""
        while True:
            for event in self._protocol.events():
                message = await self._take(event)
                if message is not None:
                    return message
            self._protocol.receive_data(await self._read())

    async def send(self, text: str) -> None:
        """Raises :class:`LinkClosed` if the client left, or did not read for too long."""
        await self._write(TextMessage(data=text))

    async def ping(self) -> None:
        await self._write(Ping())

    async def close(self, code: int, reason: str = "") -> None:
        """Begin to close. :meth:`receive` raises soon: when the client has closed its half too."""
        if self._protocol.state is ConnectionState.OPEN:
            await self._write(CloseConnection(code=code, reason=reason))
            self._close_by = trio.current_time() + self._limits.close_s
            self._waiting.deadline = self._close_by

    async def abort(self) -> None:
        """Drop the connection at once; whoever sends or receives gets :class:`LinkClosed`."""
        self._gone = True
        await trio.aclose_forcefully(self._stream)

    async def _take(self, event: Event) -> str | bytes | None:
        """Act on one event; a message is returned when its last piece is there."""
        match event:
            case TextMessage():
                self._parts.append(event.data)
                await self._check_limits(len(event.data.encode()), event.frame_finished)
                if event.message_finished:
                    return self._whole()
            case BytesMessage():
                self._byte_parts.append(bytes(event.data))
                await self._check_limits(len(event.data), event.frame_finished)
                if event.message_finished:
                    return self._whole()
            case Ping() if self._protocol.state is ConnectionState.OPEN:
                await self._write(event.response())
            case CloseConnection():
                await self._end(event)
        return None

    async def _check_limits(self, size: int, fragment_ends: bool) -> None:
        """Large fragments come in pieces."""
        self._size += size
        self._fragments += fragment_ends
        if self._size > self._limits.message_bytes:
            await self._refuse(CloseReason.MESSAGE_TOO_BIG, "the message is too large")
        if self._fragments > self._limits.fragments:
            await self._refuse(CloseReason.POLICY_VIOLATION, "the message has too many fragments")

    def _whole(self) -> str | bytes:
        text, data = "".join(self._parts), b"".join(self._byte_parts)
        self._parts, self._byte_parts, self._size, self._fragments = [], [], 0, 0
        return data or text

    async def _end(self, event: CloseConnection) -> None:
        """The client closes (the state says so), or sent frames that break the protocol."""
        if self._protocol.state is ConnectionState.OPEN:
            await self._refuse(event.code, event.reason or "")
        if self._protocol.state is ConnectionState.REMOTE_CLOSING:
            await self._write(event.response())
        raise LinkClosed(event.code, event.reason or "")

    async def _refuse(self, code: int, reason: str) -> NoReturn:
        """Close for a fault of the client's, and give it time to read why."""
        await self.close(code, reason)
        while True:
            try:
                await self._read()
            except LinkClosed:
                raise LinkClosed(code, reason) from None

    async def _read(self) -> bytes:
        deadline = min(trio.current_time() + self._limits.silence_s, self._close_by)
        with trio.CancelScope(deadline=deadline) as self._waiting:
            try:
                data = await self._stream.receive_some(READ_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            if data:
                return bytes(data)
            raise LinkClosed(CloseReason.ABNORMAL_CLOSURE)
        raise LinkClosed(CloseReason.ABNORMAL_CLOSURE, "nothing was heard for too long")

    async def _write(self, event: Event) -> None:
        """Whole or not at all: half a frame would spoil the link, so cancelling waits for it."""
        with trio.CancelScope(shield=True):
            async with self._sending:
                opens = self._protocol.state is ConnectionState.OPEN
                if self._gone or not (opens or isinstance(event, CloseConnection)):
                    raise LinkClosed(CloseReason.ABNORMAL_CLOSURE)
                await self._write_bytes(bytes(self._protocol.send(event)))

    async def _write_bytes(self, data: bytes) -> None:
        with trio.move_on_after(self._limits.send_s) as scope:
            try:
                await self._stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise LinkClosed(CloseReason.ABNORMAL_CLOSURE) from error
        if scope.cancelled_caught:
            await self.abort()
            raise LinkClosed(CloseReason.TRY_AGAIN_LATER, "the client does not read")
