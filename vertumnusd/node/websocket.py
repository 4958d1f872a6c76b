"""The websocket mode of /v1/responses: many responses over one connection, in lanes.

    reader ──response.create──► lane a: ■ □ □     first in, first out inside a lane
       │                        lane b: ■         lanes run side by side, up to a limit
       └──────errors──────► client ◄──events── the ■ of each lane

The reader never waits for work, so pings are answered and a cancel is heard while lanes are busy.
Responses are remembered for as long as the connection lives, the last few of them.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog
import trio

from vertumnusd.node.api.fields import decode
from vertumnusd.node.api.response_events import ResponseEvents
from vertumnusd.node.api.responses import Remembered, ResponseRequest, ask, check, echo, find
from vertumnusd.node.errors import RequestError, invalid
from vertumnusd.node.gate import RETRY_AFTER_S, Gate
from vertumnusd.node.generation import Outcome, generate
from vertumnusd.node.keys import Tenant
from vertumnusd.node.websocket_link import Link, LinkClosed

log = structlog.get_logger(__name__)

SERVICE_RESTART = 1012  # clients connect again, here or elsewhere

_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")


class ClientEvent(ResponseRequest, frozen=True, kw_only=True):
    """What a client may send: ``response.create``, or ``vertumnus:cancel`` with one of the ids."""

    type: str
    stream_id: str | None = None
    response_id: str | None = None


@dataclass(slots=True, eq=False)
class Pending:
    """A response that is not finished. Cancelled by its scope, before or while it runs."""

    request: ClientEvent
    size: int  # characters of its message
    events: ResponseEvents
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class Session:
    """One websocket and everything that runs for it."""

    def __init__(self, link: Link, gate: Gate, tenant: Tenant) -> None:
        self._link = link
        self._gate = gate
        self._limits = gate.limits
        self._tenant = tenant
        self._lanes: dict[str | None, deque[Pending]] = {}
        self._running = trio.CapacityLimiter(gate.limits.in_flight_per_connection)
        self._remembered: OrderedDict[str, Remembered] = OrderedDict()
        self._idle = trio.lowlevel.ParkingLot()

    async def run(self) -> None:
        """Until the websocket closes, for whatever reason."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._abort_at_end)
                nursery.start_soon(self._ping)
                nursery.start_soon(self._close_when_drained)
                while True:
                    await self._on_message(nursery, await self._link.receive())
        except* LinkClosed:
            pass  # the usual end

    async def _abort_at_end(self) -> None:
        """Sends are not cancelled half way, so the connection goes under those that are stuck."""
        try:
            await trio.sleep_forever()
        finally:
            await self._link.abort()

    async def _ping(self) -> None:
        while True:
            await trio.sleep(self._limits.ping_s)
            await self._link.ping()

    async def _close_when_drained(self) -> None:
        await self._gate.draining.wait()
        while self._lanes:
            await self._idle.park()
        await self._link.close(SERVICE_RESTART, "this node is draining")

    async def _on_message(self, nursery: trio.Nursery, message: str | bytes) -> None:
        stream_id = None
        try:
            if isinstance(message, bytes):
                raise invalid("send JSON as text, not as a binary message")
            event = decode(message, ClientEvent)
            stream_id = _checked(event.stream_id)
            match event.type:
                case "response.create":
                    self._accept(nursery, event, len(message))
                case "vertumnus:cancel":
                    self._cancel(event)
                case _:
                    raise invalid(f"events of type '{event.type[:100]}' are not known", "type")
        except RequestError as error:
            await self._send_error(stream_id, error)

    def _accept(self, nursery: trio.Nursery, event: ClientEvent, size: int) -> None:
        """Queue a response in its lane. Raises :class:`RequestError` over the limits."""
        limits = self._limits
        lane = self._lanes.get(event.stream_id)
        if lane is None and len(self._lanes) >= limits.lanes:
            raise self._refusal(
                "websocket_stream_limit_reached",
                f"{limits.lanes} streams of this connection have unfinished responses",
            )
        unfinished = [pending for queue in self._lanes.values() for pending in queue]
        waiting = size + sum(pending.size for pending in unfinished)
        if len(unfinished) >= limits.pending_per_connection or waiting > 2 * limits.message_bytes:
            raise self._refusal(
                "rate_limit_exceeded", "this connection has too many unfinished responses"
            )
        pending = Pending(event, size, self._events(event))
        if lane is not None:
            lane.append(pending)
            return
        self._lanes[event.stream_id] = deque([pending])
        nursery.start_soon(self._run_lane, event.stream_id)

    def _cancel(self, event: ClientEvent) -> None:
        """Of one response, or of all in a lane. What is over already is not an error."""
        if event.response_id is None and event.stream_id is None:
            raise invalid("'response_id' or 'stream_id' says what to cancel", "response_id")
        for stream_id, lane in self._lanes.items():
            for pending in lane:
                if pending.events.id == event.response_id or (
                    event.response_id is None and stream_id == event.stream_id
                ):
                    pending.scope.cancel()

    async def _run_lane(self, stream_id: str | None) -> None:
        lane = self._lanes[stream_id]
        while lane:
            async with self._running:
                await self._answer(lane[0])
            lane.popleft()
        del self._lanes[stream_id]
        self._idle.unpark_all()

    async def _answer(self, pending: Pending) -> None:
        """Exactly one end for every response: finished, cancelled, or an error."""
        try:
            with self._gate.admit(self._tenant):
                outcome = await self._generate(pending)
                if outcome is None:
                    await pending.events.cancel()
                else:
                    await pending.events.finish(outcome)
            log.info("answered", response=pending.events.id, key=self._tenant.name)
        except RequestError as error:
            await self._fail(pending, error)
        except LinkClosed:
            raise
        except Exception:
            log.exception("response failed", response=pending.events.id)
            await self._fail(pending, RequestError(500, "server_error", "internal error"))

    async def _generate(self, pending: Pending) -> Outcome | None:
        """``None`` if the client cancelled the response."""
        gate, request, events = self._gate, pending.request, pending.events
        with pending.scope:
            await trio.lowlevel.checkpoint_if_cancelled()  # while it waited in its lane
            check(gate, request)
            past = find(self._remembered, request)
            asked = await ask(gate, self._tenant, events.id, request, past)
            outcome = await generate(gate, asked.job, (), events)
            self._remember(events.id, asked.remember(gate, outcome))
            return outcome
        return None

    def _remember(self, response_id: str, conversation: Remembered) -> None:
        self._remembered[response_id] = conversation
        if len(self._remembered) > self._limits.remembered_responses:
            self._remembered.popitem(last=False)

    async def _fail(self, pending: Pending, error: RequestError) -> None:
        if pending.events.started:
            await pending.events.fail(error)
        else:
            await self._send_error(pending.request.stream_id, error)

    async def _send_error(self, stream_id: str | None, error: RequestError) -> None:
        await self._send(stream_id, {"type": "error", "status": error.status, **error.body()})

    def _events(self, event: ClientEvent) -> ResponseEvents:
        async def send(content: dict[str, Any]) -> None:
            await self._send(event.stream_id, content)

        return ResponseEvents(send, echo(self._gate, event))

    async def _send(self, stream_id: str | None, content: dict[str, Any]) -> None:
        if stream_id is not None:
            content["stream_id"] = stream_id
        await self._link.send(msgspec.json.encode(content).decode())

    def _refusal(self, code: str, message: str) -> RequestError:
        self._gate.metrics.rejected(code)
        return RequestError(429, code, message, retry_after_s=RETRY_AFTER_S)


def _checked(stream_id: str | None) -> str | None:
    if stream_id is not None and not _STREAM_ID.fullmatch(stream_id):
        raise invalid(
            "a stream_id has 1 to 256 of the characters A-Z a-z 0-9 _ . -",
            "stream_id",
            "invalid_stream_id",
        )
    return stream_id
