"""One HTTP request and its answer, as an endpoint sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec
import trio

from vertumnusd.node.api.fields import decode
from vertumnusd.node.errors import RequestError
from vertumnusd.node.http import Head, Headers, HttpConnection
from vertumnusd.node.keys import ANYONE, Tenant

T = TypeVar("T")

JSON = "application/json"


class Exchange:
    """What to answer to, and the ways to answer: one JSON object, or a stream of events."""

    def __init__(self, connection: HttpConnection, head: Head) -> None:
        self.head = head
        self.arrived = trio.current_time()
        self.tenant: Tenant = ANYONE
        self._connection = connection
        self._body = b""

    async def receive(self) -> None:
        """Take in the body. Raises :class:`RequestError`."""
        if self.head.method == "POST" and not (
            self.head.headers.keys() & {b"content-length", b"transfer-encoding"}
        ):
            raise RequestError(411, "length_required", "send a Content-Length with the body")
        self._body = await self._connection.body()

    def read(self, type_: type[T]) -> T:
        """The body as ``type_``. Raises :class:`RequestError`."""
        return decode(self._body, type_)

    async def json(self, content: object, *, status: int = 200, headers: Headers = ()) -> None:
        await self.bytes(msgspec.json.encode(content), JSON, status=status, headers=headers)

    async def bytes(
        self, body: bytes, content_type: str, *, status: int = 200, headers: Headers = ()
    ) -> None:
        await self._connection.reply(status, body, content_type=content_type, headers=headers)

    def events(self) -> EventStream:
        return EventStream(self._connection)


async def send_error(connection: HttpConnection, error: RequestError) -> None:
    await connection.reply(
        error.status,
        msgspec.json.encode(error.body()),
        content_type=JSON,
        headers=error.headers,
    )


class EventStream:
    """Server-sent events. The stream begins with the first event: until then an error still has its
    own HTTP status."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection
        self.started = False

    async def send(self, content: object, name: str = "") -> None:
        """One event, on its way to the client when this returns."""
        prefix = f"event: {name}\n" if name else ""
        data = b"%sdata: %s\n\n" % (prefix.encode("ascii"), msgspec.json.encode(content))
        if self.started:
            await self._connection.send_data(data)
            return
        self.started = True
        await self._connection.start_stream(
            data,
            content_type="text/event-stream",
            # Proxies must pass every token on at once.
            headers=(("Cache-Control", "no-cache"), ("X-Accel-Buffering", "no")),
        )

    async def end(self) -> None:
        """Every stream has an event before its end: it says at least why it ends."""
        await self._connection.end_stream(b"data: [DONE]\n\n")

    @asynccontextmanager
    async def errors(self) -> AsyncIterator[None]:
        """Around the making of the stream: an error after its beginning becomes its last event."""
        try:
            yield
        except RequestError as error:
            if not self.started:
                raise
            await self.send(error.body())
            await self.end()
