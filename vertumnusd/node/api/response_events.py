"""A Response object of the OpenAI Responses API and the events of its making.

The same events go over server-sent events and over the websocket; ``sequence_number`` rises by one
from 0 within a response. The order, with what is left out when nothing was generated in brackets:

    response.created, response.in_progress, vertumnus:placement,
    [response.output_item.added, response.content_part.added, response.output_text.delta …,
    response.output_text.done, response.content_part.done, response.output_item.done,]
    response.completed | response.incomplete | response.failed

A placement may come again when a request is placed anew. Nothing is sent before the first placement
or text: an error until then is the answer to the request itself.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from vertumnusd.messages import Finished, Placed
from vertumnusd.node.api.usage import response_usage
from vertumnusd.node.errors import RequestError
from vertumnusd.node.generation import DIGITS, Outcome, timings

Send = Callable[[dict[str, Any]], Awaitable[None]]


class Echo(msgspec.Struct, frozen=True):
    """What a Response repeats of its request.

    Not the instructions: they may be long, are known to who sent them, and would come three times.
    """

    model: str
    max_output_tokens: int | None
    metadata: dict[str, str]
    previous_response_id: str | None
    temperature: float
    top_p: float


class ResponseEvents:
    """The sink of one response."""

    def __init__(self, send: Send, echo: Echo) -> None:
        self.id = f"resp_{secrets.token_hex(16)}"
        self.started = False
        self._send = send
        self._echo = echo
        self._item_id = f"msg_{secrets.token_hex(16)}"
        self._created_at = int(time.time())
        self._sequence = 0
        self._speaking = False
        self._text: list[str] = []

    async def placed(self, placed: Placed) -> None:
        await self._start()
        await self._event("vertumnus:placement", response_id=self.id, placement=_placement(placed))

    async def text(self, delta: str) -> None:
        await self._speak()
        self._text.append(delta)
        await self._part_event("response.output_text.delta", delta=delta, logprobs=[])

    async def finish(self, outcome: Outcome) -> None:
        """The last events of an answer that is as long as it was to be."""
        await self._start()
        if outcome.finished.reason != "prefilled":
            await self._end_item(outcome.text, _status(outcome))
        response = self.whole(outcome)
        await self._event(f"response.{response['status']}", response=response)

    async def cancel(self) -> None:
        """The client gave up on the rest; it keeps what it got."""
        await self._start()
        text = "".join(self._text)
        if self._speaking:
            await self._end_item(text, "incomplete")
        response = self._response(
            "incomplete",
            output=[self._item(text, "incomplete")] if self._speaking else [],
            incomplete_details={"reason": "cancelled"},
        )
        await self._event("response.incomplete", response=response)

    async def fail(self, error: RequestError) -> None:
        """An error after the beginning. What was sent before it stays unfinished."""
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        response = self._response("failed", error={"code": code, "message": error.message})
        await self._event("response.failed", response=response)

    def whole(self, outcome: Outcome) -> dict[str, Any]:
        """The finished Response object."""
        status = _status(outcome)
        finished = outcome.finished
        spoke = finished.reason != "prefilled"
        return self._response(
            status,
            output=[self._item(outcome.text, status)] if spoke else [],
            finished=finished,
            completed_at=int(time.time()) if status == "completed" else None,
            incomplete_details=None if status == "completed" else {"reason": "max_output_tokens"},
        )

    async def _start(self) -> None:
        if self.started:
            return
        self.started = True
        await self._event("response.created", response=self._response("in_progress"))
        await self._event("response.in_progress", response=self._response("in_progress"))

    async def _speak(self) -> None:
        await self._start()
        if self._speaking:
            return
        self._speaking = True
        item = self._item(None, "in_progress")
        await self._event("response.output_item.added", output_index=0, item=item)
        await self._part_event("response.content_part.added", part=_text_part(""))

    async def _end_item(self, text: str, status: str) -> None:
        await self._speak()
        await self._part_event("response.output_text.done", text=text, logprobs=[])
        await self._part_event("response.content_part.done", part=_text_part(text))
        item = self._item(text, status)
        await self._event("response.output_item.done", output_index=0, item=item)

    async def _part_event(self, type_: str, **fields: Any) -> None:
        await self._event(type_, item_id=self._item_id, output_index=0, content_index=0, **fields)

    async def _event(self, type_: str, **fields: Any) -> None:
        sequence, self._sequence = self._sequence, self._sequence + 1
        await self._send({"type": type_, "sequence_number": sequence, **fields})

    def _item(self, text: str | None, status: str) -> dict[str, Any]:
        return {
            "id": self._item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [] if text is None else [_text_part(text)],
        }

    def _response(
        self,
        status: str,
        *,
        output: list[dict[str, Any]] | None = None,
        finished: Finished | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        echo = self._echo
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created_at,
            "completed_at": None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": echo.max_output_tokens,
            "max_tool_calls": None,
            "metadata": echo.metadata,
            "model": echo.model,
            "output": output or [],
            "parallel_tool_calls": False,
            "previous_response_id": echo.previous_response_id,
            "reasoning": {"effort": None, "summary": None},
            "service_tier": "default",
            "store": False,
            "temperature": echo.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_logprobs": 0,
            "top_p": echo.top_p,
            "truncation": "disabled",
            "usage": None if finished is None else response_usage(finished),
            "vertumnus": None if finished is None else timings(finished),
            **fields,
        }


def _status(outcome: Outcome) -> str:
    return "incomplete" if outcome.finished.reason == "length" else "completed"


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _placement(placed: Placed) -> dict[str, Any]:
    """Where the request waits, and the terms of J (seconds) that chose the place."""
    return {
        "worker": placed.worker,
        "degree": placed.degree,
        "preferred_degree": placed.preferred_degree,
        "input_tokens": placed.input_tokens,
        "cached_tokens": placed.cached_tokens,
        "queue_s": round(placed.queue_s, DIGITS),
        "service_s": round(placed.service_s, DIGITS),
        "delay_s": round(placed.delay_s, DIGITS),
        "fetch_s": round(placed.fetch_s, DIGITS),
        "gpu_price_s": round(placed.gpu_price_s, DIGITS),
        "cost_s": round(placed.cost_s, DIGITS),
    }
