"""One HTTP/1.1 connection: h11 decides what the bytes mean, this module moves them.

Requests of a connection are answered one after the other (what a client pipelines waits in h11's
buffer). While an answer is made the connection is still read, so that a client that leaves is
noticed at once. Every wait has an end: header, body, idling, and a client that does not read.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from email.utils import formatdate
from http.client import responses as PHRASES
from typing import Any

import h11
import trio

from vertumnusd import __version__
from vertumnusd.node.errors import RequestError
from vertumnusd.node.limits import Limits

READ_BYTES = 64 * 1024
READ_AHEAD_BYTES = 64 * 1024  # of later requests, taken in while one is being answered
VERSIONS = (b"1.0", b"1.1")
SKIP_BYTES = 64 * 1024  # of an unwanted body
SKIP_S = 0.1
SERVER = f"vertumnusd/{__version__}"

_REQUEST_ID = re.compile(rb"[\x20-\x7e]{1,128}")

Headers = Iterable[tuple[str, str]]


class PeerGone(Exception):
    """The client closed the connection, broke it, or stopped reading."""


@dataclass(frozen=True, slots=True)
class Head:
    """A request without its body. Header names are lower case; repeated ones are joined."""

    method: str
    path: str
    headers: dict[bytes, bytes]
    request_id: str
    version: bytes  # b"1.0" or b"1.1"

    def header(self, name: bytes) -> bytes:
        return self.headers.get(name, b"")

    @property
    def length(self) -> int:
        """Of the body, as declared."""
        return int(self.header(b"content-length") or b"0")

    @property
    def has_body(self) -> bool:
        return b"transfer-encoding" in self.headers or self.length > 0


class HttpConnection:
    """The server's side of one connection."""

    def __init__(self, stream: trio.abc.Stream, limits: Limits) -> None:
        self.stream = stream
        self._limits = limits
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.header_bytes)
        self._sending = trio.Lock()
        self._served = 0
        self._body_awaited = False
        self._declared = 0
        self._method = ""
        self._request_id = ""
        self.keep = True  # open for a further request

    async def next_head(self) -> Head | None:
        """The next request; ``None`` if the client is done, or silent for too long.

        Raises :class:`RequestError` for what is no request. Nothing can follow it.
        """
        self._request_id = f"req_{secrets.token_hex(12)}"
        patience_s = self._limits.idle_s if self._served else self._limits.handshake_s
        with trio.move_on_after(patience_s):
            await self._await_bytes()
        if not any(self._h11.trailing_data):
            return None
        with trio.move_on_after(self._limits.handshake_s):
            event = await self._next_event()
            if isinstance(event, h11.ConnectionClosed):
                return None
            assert isinstance(event, h11.Request)
            self._served += 1
            head = self._head(event)
            self._body_awaited = head.has_body
            self._declared = head.length
            if not self._body_awaited:
                await self._next_event()  # the end of the request, which is there already
            return head
        raise RequestError(408, "request_timeout", "the request's header took too long")

    async def body(self) -> bytes:
        """The whole body of the request. Raises :class:`RequestError` 408, 413 or 400."""
        body = bytearray()
        if not self._body_awaited:
            return b""
        self._check_size(self._declared)  # before anything is read, and before a 100
        with trio.move_on_after(self._limits.body_s):
            while True:
                event = await self._next_event()
                if isinstance(event, h11.EndOfMessage):
                    return bytes(body)
                assert isinstance(event, h11.Data)
                body += event.data
                self._check_size(len(body))
        raise RequestError(408, "request_timeout", "the request's body took too long")

    def _check_size(self, size: int) -> None:
        most = self._limits.message_bytes
        if size > most:
            raise RequestError(
                413, "request_too_large", f"the body has more than {most} bytes, the most allowed"
            )

    async def skip_body(self) -> None:
        """Take in a small body that nobody wants, so that the connection need not be closed."""
        wanted = self._h11.they_are_waiting_for_100_continue or self._declared > SKIP_BYTES
        if self._body_awaited and self._h11.their_state is h11.SEND_BODY and not wanted:
            with trio.move_on_after(SKIP_S), suppress(RequestError):
                await self.body()

    async def while_connected(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run ``work``; if the client closes its side meanwhile, cancel it and raise PeerGone."""
        left = False
        raised: Exception | None = None

        async def watch() -> None:
            nonlocal left
            await self._until_closed()
            left = True
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            try:
                await work()
            except Exception as error:  # raised again below as itself, not in the nursery's group
                raised = error
            nursery.cancel_scope.cancel()
        if left:
            raise PeerGone
        if raised is not None:
            raise raised

    @property
    def started(self) -> bool:
        """Whether the current request's answer is on its way, so that its status is settled."""
        return self._h11.our_state not in (h11.IDLE, h11.SEND_RESPONSE)

    async def reply(
        self, status: int, body: bytes, *, content_type: str, headers: Headers = ()
    ) -> None:
        fields = [("Content-Type", content_type), ("Content-Length", str(len(body))), *headers]
        response = self._response(status, fields)
        data = [] if self._method == "HEAD" else [h11.Data(data=body)]
        await self._send(response, *data, h11.EndOfMessage())

    async def start_stream(self, data: bytes, *, content_type: str, headers: Headers = ()) -> None:
        """Begin an answer of unknown length with its first ``data``; the head goes with it.

        ``send_data`` and ``end_stream`` follow. What can leave together does: a write wakes the
        client up, and costs more than all else that is done for a token.
        """
        fields = [("Content-Type", content_type), *headers]
        await self._send(self._response(200, fields), h11.Data(data=data))

    async def send_data(self, data: bytes) -> None:
        await self._send(h11.Data(data=data))

    async def end_stream(self, data: bytes) -> None:
        """The last ``data``, and the end."""
        await self._send(h11.Data(data=data), h11.EndOfMessage())

    async def switch(self, headers: Headers) -> bytes:
        """Leave HTTP with a 101; what the client sent beyond its request is returned."""
        await self._send(h11.InformationalResponse(status_code=101, headers=self._fields(headers)))
        return self._h11.trailing_data[0]

    def next_request(self) -> bool:
        """Get ready for another request on this connection; false if it has to be closed."""
        if not self.keep or (self._h11.our_state, self._h11.their_state) != (h11.DONE, h11.DONE):
            return False
        self._h11.start_next_cycle()
        return True

    async def linger(self) -> None:
        """Let the client read the last answer before the connection goes.

        Closing while it still sends would make its system drop the answer unread.
        """
        if self._h11.their_state not in (h11.SEND_BODY, h11.ERROR):
            return
        if isinstance(self.stream, trio.abc.HalfCloseableStream):
            await self.stream.send_eof()
        with trio.move_on_after(self._limits.close_s):
            while await self.stream.receive_some(READ_BYTES):
                pass

    async def _next_event(self) -> Any:
        while True:
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                raise _bad_request(error) from error
            if event is not h11.NEED_DATA:
                return event
            if self._h11.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            await self._receive()

    async def _until_closed(self) -> None:
        """Read ahead, not too far, to see the client close its side."""
        ahead = 0
        while ahead < READ_AHEAD_BYTES:
            try:
                ahead += await self._receive()
            except PeerGone:
                return
            if self._h11.trailing_data[1]:
                return
        await trio.sleep_forever()

    async def _await_bytes(self) -> None:
        if not any(self._h11.trailing_data):
            await self._receive()

    async def _receive(self) -> int:
        try:
            data = await self.stream.receive_some(READ_BYTES)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise PeerGone from error
        self._h11.receive_data(bytes(data))
        return len(data)

    async def _send(self, *events: h11.Event) -> None:
        async with self._sending:
            data = b"".join(self._h11.send(event) or b"" for event in events)
            with trio.move_on_after(self._limits.send_s) as scope:
                try:
                    await self.stream.send_all(data)
                except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                    raise PeerGone from error
            if scope.cancelled_caught:
                raise PeerGone("the client does not read")

    def _response(self, status: int, fields: Headers) -> h11.Response:
        phrase = PHRASES.get(status, "")
        return h11.Response(status_code=status, reason=phrase, headers=self._fields(fields))

    def _fields(self, fields: Headers) -> list[tuple[str, str]]:
        own = [
            ("Server", SERVER),
            ("Date", formatdate(usegmt=True)),
            ("X-Request-Id", self._request_id),
        ]
        if not self.keep or self._h11.their_state in (h11.IDLE, h11.SEND_BODY, h11.ERROR):
            own.append(("Connection", "close"))
        return [*own, *fields]

    def _head(self, request: h11.Request) -> Head:
        size = len(request.target) + sum(len(name) + len(value) for name, value in request.headers)
        if size > self._limits.header_bytes:
            raise RequestError(431, "header_too_large", "the request's header is too large")
        headers: dict[bytes, bytes] = {}
        for name, value in request.headers:
            headers[name] = headers[name] + b", " + value if name in headers else value
        offered = headers.get(b"x-request-id", b"")
        if _REQUEST_ID.fullmatch(offered):  # a label: it must not break a header or a log line
            self._request_id = offered.decode("ascii")
        self._method = request.method.decode("ascii")
        path = request.target.partition(b"?")[0].decode("latin-1")
        if request.http_version not in VERSIONS:
            raise RequestError(505, "http_version", "HTTP/1.1 is spoken here")
        return Head(self._method, path, headers, self._request_id, request.http_version)


def _bad_request(error: h11.RemoteProtocolError) -> RequestError:
    status = error.error_status_hint
    code = "header_too_large" if status == 431 else "bad_request"
    return RequestError(status, code, f"this is not a correct HTTP request: {error}")
