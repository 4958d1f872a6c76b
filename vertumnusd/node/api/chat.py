"""POST /v1/chat/completions: a conversation in, the assistant's next words out."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from vertumnusd.messages import Placed
from vertumnusd.node.api.conversation import Message, conversation
from vertumnusd.node.api.fields import (
    HARMLESS,
    CompletionFields,
    Positive,
    check_model,
    output_room,
    refuse_unsupported,
    within_context,
)
from vertumnusd.node.api.usage import completion_usage, finish_reason
from vertumnusd.node.errors import invalid
from vertumnusd.node.exchange import EventStream, Exchange
from vertumnusd.node.gate import Gate
from vertumnusd.node.generation import Outcome, Silence, generate, timings
from vertumnusd.node.service import Job

UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    **HARMLESS,
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
}


class ChatRequest(CompletionFields, frozen=True, kw_only=True):
    """``max_completion_tokens`` is the newer name of ``max_tokens`` and goes before it."""

    messages: list[Message]
    max_completion_tokens: Positive | None = None
    top_logprobs: Any = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    response_format: Any = None
    modalities: Any = None
    audio: Any = None
    web_search_options: Any = None


async def chat(exchange: Exchange, gate: Gate) -> None:
    request = exchange.read(ChatRequest)
    check_model(gate, request.model)
    refuse_unsupported(request, UNSUPPORTED)
    stops = request.stops()
    answer = _Answer(gate)
    job = await _job(gate, request, exchange, answer.id)
    if not request.stream:
        outcome = await generate(gate, job, stops, Silence())
        await exchange.json(answer.whole(outcome))
        return
    events = exchange.events()
    async with events.errors():
        deltas = _Deltas(events, answer)
        outcome = await generate(gate, job, stops, deltas)
        await deltas.finish(outcome)
        if request.include_usage:
            await events.send(answer.usage(outcome))
        await events.end()


class _Answer:
    """The objects of one answer, and what all of them share."""

    def __init__(self, gate: Gate) -> None:
        self.id = f"chatcmpl-{secrets.token_hex(12)}"
        self._common = {
            "id": self.id,
            "created": int(time.time()),
            "model": gate.service.model.name,
        }
        self._chunk = {**self._common, "object": "chat.completion.chunk"}

    def part(self, delta: dict[str, str], reason: str | None, **more: Any) -> dict[str, Any]:
        """A chunk of a stream."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {**self._chunk, "choices": [choice], **more}

    def usage(self, outcome: Outcome) -> dict[str, Any]:
        """The last chunk of a stream, for those who ask for it."""
        return {**self._chunk, "choices": [], "usage": completion_usage([outcome])}

    def whole(self, outcome: Outcome) -> dict[str, Any]:
        message = {"role": "assistant", "content": outcome.text, "refusal": None}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": finish_reason(outcome),
        }
        return {
            **self._common,
            "object": "chat.completion",
            "choices": [choice],
            "usage": completion_usage([outcome]),
            "vertumnus": timings(outcome.finished),
        }


class _Deltas:
    """The sink of a streamed answer: first who speaks, then the words."""

    def __init__(self, events: EventStream, answer: _Answer) -> None:
        self._events = events
        self._answer = answer

    async def placed(self, placed: Placed) -> None:
        await self._begin()

    async def text(self, delta: str) -> None:
        await self._begin()
        await self._events.send(self._answer.part({"content": delta}, None))

    async def finish(self, outcome: Outcome) -> None:
        await self._begin()
        times = timings(outcome.finished)
        await self._events.send(self._answer.part({}, finish_reason(outcome), vertumnus=times))

    async def _begin(self) -> None:
        if not self._events.started:
            speaker = {"role": "assistant", "content": ""}
            await self._events.send(self._answer.part(speaker, None))


async def _job(gate: Gate, request: ChatRequest, exchange: Exchange, id: str) -> Job:
    messages = conversation(request.messages)
    context = gate.service.model.context_tokens
    if len(messages) > context:
        raise invalid(f"{len(messages)} messages cannot fit {context} tokens", "messages")
    told = await within_context(gate, gate.tokens.chat(messages, most=context), "messages")
    asked = request.max_completion_tokens
    if asked is None:
        asked = request.max_tokens
    ids = told.ids.tolist()
    return Job(
        request=id,
        arrived=exchange.arrived,
        tokens=ids,
        max_new_tokens=output_room(gate, len(ids), asked, "messages"),
        sampling=request.sampling(request.seed),
        stop_tokens=() if request.ignore_eos else gate.tokens.stop_tokens,
        salt=exchange.tenant.salt,
    )
