"""The way to a node: an address, and a websocket that comes back by itself.

connecting ──► live ──► lost ──(a little longer each time)──► connecting …
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from vertumnus_tui.model import FeedError
from vertumnus_tui.status import Connecting, Live, Lost, Status
from vertumnusd.messages import FeedFrame, FeedSnapshot

FEED = "/v1/admin/feed"
MESSAGE_BYTES = 64 << 20
OPEN_S = 5.0
CLOSE_S = 0.1  # a node that does not answer must not keep the console from ending
EXPECTED = "ws://HOST:PORT or wss://HOST:PORT is expected"
RETRY_S = (0.5, 1.0, 2.0, 4.0)  # the last one from then on

_FRAME = msgspec.json.Decoder(FeedFrame)


class AddressError(ValueError):
    """No address of a node; the message says what one looks like."""


@dataclass(frozen=True, slots=True)
class Address:
    """A unix socket, or host and port, perhaps over TLS."""

    socket: Path | None = None
    host: str = ""
    port: int = 0
    tls: bool = False
    token: str = ""

    def __str__(self) -> str:
        if self.socket is not None:
            return str(self.socket)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'wss' if self.tls else 'ws'}://{host}:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def connect(self) -> connect:
        """Not retried here: ``Link`` says when."""
        options: dict[str, Any] = {
            "max_size": MESSAGE_BYTES,
            "open_timeout": OPEN_S,
            "close_timeout": CLOSE_S,
            "compression": None,
        }
        if self.socket is not None:
            return unix_connect(str(self.socket), f"ws://localhost{FEED}", **options)
        return connect(f"{self}{FEED}", additional_headers=self.headers, proxy=None, **options)

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A plain connection, for HTTP. Raises OSError."""
        if self.socket is not None:
            return await asyncio.open_unix_connection(self.socket)
        return await asyncio.open_connection(self.host, self.port, ssl=self.tls or None)


def parse_address(text: str, token: str = "") -> Address:
    """``ws://host:port``, ``wss://`` or ``http(s)://``. Raises :class:`AddressError`."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise AddressError(f"{text}: {EXPECTED} ({error})") from error
    if parts.scheme not in ("ws", "wss", "http", "https") or not parts.hostname:
        raise AddressError(f"{text}: {EXPECTED}")
    tls = parts.scheme in ("wss", "https")
    return Address(host=parts.hostname, port=port or (443 if tls else 8000), tls=tls, token=token)


class Link:
    """Feeds frames to ``on_frame`` and tells ``on_status``, until cancelled."""

    def __init__(
        self,
        address: Address,
        on_frame: Callable[[FeedFrame], None],
        on_status: Callable[[Status], None],
    ) -> None:
        self._address = address
        self._on_frame = on_frame
        self._on_status = on_status

    async def run(self) -> None:
        failures = 0
        while True:
            self._on_status(Connecting(str(self._address)))
            try:
                async with self._address.connect() as websocket:
                    async for frame in _frames(websocket):
                        self._on_frame(frame)
                        if isinstance(frame, FeedSnapshot):
                            failures = 0
                            self._on_status(Live())
                reason = "the node closed the connection"
            except FAILURES as error:
                reason = explain(error, self._address)
            retry_s = RETRY_S[min(failures, len(RETRY_S) - 1)]
            failures += 1
            self._on_status(Lost(reason, retry_s))
            await asyncio.sleep(retry_s)


async def first_frame(address: Address) -> FeedFrame:
    """The snapshot alone. Raises one of ``FAILURES``."""
    async with address.connect() as websocket:
        return await anext(_frames(websocket))


async def _frames(websocket: ClientConnection) -> AsyncIterator[FeedFrame]:
    async for message in websocket:
        yield _FRAME.decode(message)


FAILURES = (
    OSError,
    TimeoutError,
    ConnectionClosed,
    InvalidHandshake,
    InvalidURI,
    msgspec.DecodeError,
    FeedError,
)


def explain(error: Exception, address: Address) -> str:
    """What went wrong, for people."""
    match error:
        case ConnectionClosed():
            received = error.rcvd
            return (received and received.reason) or "the connection broke"
        case InvalidStatus() if error.response.status_code == 401:
            if not address.token:
                return "the node wants an admin token (--admin-token-file)"
            return "the node does not take this admin token"
        case InvalidStatus():
            return f"the node answers HTTP {error.response.status_code}"
        case FileNotFoundError() | ConnectionRefusedError():
            return "no node there" if address.socket is None else "no node at its socket"
        case PermissionError():
            return f"{address} is not open to this user"
        case TimeoutError():
            return f"{address} does not answer"
        case msgspec.DecodeError() | FeedError():
            return f"not understood: {error}"
    return str(error) or type(error).__name__
