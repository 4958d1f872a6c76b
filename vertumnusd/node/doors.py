"""The node's one port: HTTP and websockets, from the first byte of a connection to its last.

    accept ─► may this address have one more? ─► request ─► 404, 405, 401, 503 or 429 ─► endpoint
                                                    └─► upgrade ─► websocket session

Whatever a client sends or does, it can end its own connection and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

import msgspec
import structlog
import trio

from vertumnusd.node import handshake, routes
from vertumnusd.node.admin import Admin
from vertumnusd.node.api.admin_feed import FeedSession
from vertumnusd.node.errors import UNAVAILABLE, RequestError
from vertumnusd.node.exchange import Exchange, send_error
from vertumnusd.node.gate import Gate
from vertumnusd.node.http import Head, HttpConnection, PeerGone
from vertumnusd.node.keys import Keys, Tenant
from vertumnusd.node.limits import Limits
from vertumnusd.node.metrics import Metrics
from vertumnusd.node.routes import Route
from vertumnusd.node.service import Service
from vertumnusd.node.tokens import Tokens
from vertumnusd.node.websocket import Session
from vertumnusd.node.websocket_link import Link

log = structlog.get_logger(__name__)

REFUSAL_S = 1.0  # spent on telling a client that there are too many connections
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\n"
    b"Content-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b"
)


class Doors:
    """Serves clients until cancelled; :meth:`drain` comes before a clean end."""

    def __init__(
        self,
        service: Service,
        tokens: Tokens,
        keys: Keys,
        metrics: Metrics,
        limits: Limits,
        admin: Admin,
    ) -> None:
        self._gate = Gate(service, tokens, keys, metrics, limits, admin.operator)
        self._admin = admin
        self._connections: Counter[str] = Counter()
        self._websockets = 0
        self._websocket_closed = trio.lowlevel.ParkingLot()

    async def serve(
        self,
        listeners: Sequence[trio.abc.Listener[trio.abc.Stream]],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept connections from ``listeners``, which must be listening already."""
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, self.serve_stream, list(listeners))
            task_status.started()

    async def serve_admin(self, listener: trio.abc.Listener[trio.abc.Stream]) -> None:
        """Accept connections from the admin socket, and keep the consoles' feed going."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._admin.feed.run)
            nursery.start_soon(trio.serve_listeners, self.serve_admin_stream, [listener])

    def replace_keys(self, keys: Keys) -> None:
        """Take other API keys from now on; answers that are being made go on."""
        self._gate.keys = keys

    async def drain(self) -> None:
        """Refuse new work; return when all answers are complete and all websockets closed.

        The port stays open: probes, scrapes, and refusals that say why, go on.
        """
        self._gate.draining.set()
        await self._gate.until_idle()
        while self._websockets:
            await self._websocket_closed.park()

    async def serve_admin_stream(self, stream: trio.abc.Stream) -> None:
        """A connection through the admin socket: who could open it is trusted."""
        await self.serve_stream(stream, trusted=True)

    async def serve_stream(self, stream: trio.abc.Stream, trusted: bool = False) -> None:
        """The outer edge of a connection: nothing gets past it but cancellation."""
        address = _address(stream)
        try:
            async with stream:
                if self._full(address):
                    await self._refuse_connection(stream)
                    return
                self._connections[address] += 1
                try:
                    connection = HttpConnection(stream, self._gate.limits)
                    await self._serve_connection(connection, trusted)
                finally:
                    self._connections[address] -= 1
                    if not self._connections[address]:
                        del self._connections[address]
        except* (PeerGone, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except* Exception:
            log.exception("connection failed", peer=address)

    def _full(self, address: str) -> bool:
        limits = self._gate.limits
        return self._connections.total() >= limits.connections or (
            bool(address) and self._connections[address] >= limits.connections_per_address
        )

    async def _refuse_connection(self, stream: trio.abc.Stream) -> None:
        code = "connection_limit_reached"
        self._gate.metrics.rejected(code)
        error = RequestError(503, code, "there are too many connections")
        body = msgspec.json.encode(error.body())
        with trio.move_on_after(REFUSAL_S):
            await stream.send_all(REFUSAL % (len(body), body))

    async def _serve_connection(self, connection: HttpConnection, trusted: bool) -> None:
        going_on = True
        while going_on:
            try:
                head = await connection.next_head()
            except RequestError as error:
                await send_error(connection, error)
                break
            if head is None:
                return
            if handshake.wanted(head):
                going_on = await self._upgrade(connection, head, trusted)
            else:
                await self._answer(connection, head, trusted)
            going_on = going_on and connection.next_request()
        await connection.linger()

    async def _answer(self, connection: HttpConnection, head: Head, trusted: bool) -> None:
        """One request, to its last byte. Raises :class:`PeerGone` if the client left."""
        exchange = Exchange(connection, head)
        connection.keep = not self._gate.draining.is_set()
        try:
            route = routes.find(head)
            if route.admin and not trusted:
                self._admin.token.check(head)
            if route.keyed and (route.works or not trusted):
                exchange.tenant = self._tenant(head)
            with self._gate.admit(exchange.tenant) if route.works else nullcontext():
                await self._handle(connection, exchange, route)
        except RequestError as error:
            await self._fail(connection, error)
        except PeerGone:
            raise
        except Exception:
            log.exception("request failed", path=head.path, request_id=head.request_id)
            await self._fail(connection, RequestError(500, "server_error", "internal error"))

    async def _handle(self, connection: HttpConnection, exchange: Exchange, route: Route) -> None:
        """An error is sent here, inside the gate: the end of a drain waits for it."""
        head = exchange.head
        try:
            await exchange.receive()
            await connection.while_connected(partial(route.handler, exchange, self._gate))
        except RequestError as error:
            await self._fail(connection, error)
        else:
            if route.works:
                name = exchange.tenant.name
                log.info("answered", path=head.path, request_id=head.request_id, key=name)

    async def _fail(self, connection: HttpConnection, error: RequestError) -> None:
        """An error cannot follow what was begun; such an answer is broken off, for all to see."""
        if connection.started:
            connection.keep = False
        else:
            await connection.skip_body()
            await send_error(connection, error)

    async def _upgrade(self, connection: HttpConnection, head: Head, trusted: bool) -> bool:
        """Serve a websocket. True if it was refused and HTTP goes on."""
        if head.path == handshake.ADMIN_FEED:
            return await self._upgrade_feed(connection, head, trusted)
        try:
            tenant = self._tenant(head)
            headers = handshake.accept(head)
            if self._gate.draining.is_set():
                raise RequestError(503, UNAVAILABLE, "this node is draining", retry_after_s=1.0)
        except RequestError as error:
            await send_error(connection, error)
            return True
        link = Link(connection.stream, self._gate.limits, await connection.switch(headers))
        self._websockets += 1
        try:
            await Session(link, self._gate, tenant).run()
        finally:
            self._websockets -= 1
            self._websocket_closed.unpark_all()
        return False

    async def _upgrade_feed(self, connection: HttpConnection, head: Head, trusted: bool) -> bool:
        """A console watches a node that drains to its end, and does not keep it from ending."""
        try:
            if not trusted:
                self._admin.token.check(head)
            headers = handshake.accept(head)
        except RequestError as error:
            await send_error(connection, error)
            return True
        limits = self._gate.limits
        link = Link(connection.stream, limits, await connection.switch(headers))
        await FeedSession(link, self._admin.feed, limits).run()
        return False

    def _tenant(self, head: Head) -> Tenant:
        """Raises :class:`RequestError` 401, or 403 for web pages of other sites."""
        if not self._gate.keys:
            handshake.check_origin(head)
        return self._gate.keys.tenant(head.header(b"authorization"))


def _address(stream: trio.abc.Stream) -> str:
    """The client's address; "" where there is none, as on a unix socket."""
    transport = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
    if not isinstance(transport, trio.SocketStream):
        return ""
    try:
        peer = transport.socket.getpeername()
    except OSError:  # it left already
        return ""
    return str(peer[0]) if isinstance(peer, tuple) else ""
