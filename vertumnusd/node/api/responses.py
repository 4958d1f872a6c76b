"""The Responses API: POST /v1/responses, and the request that its websocket mode shares.

Nothing is stored: a response is remembered by the websocket it was made on and by nothing else, so
``previous_response_id`` finds nothing over HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import trio
from msgspec import Meta

from vertumnusd.node.api.conversation import Message, conversation
from vertumnusd.node.api.fields import (
    GenerationFields,
    Positive,
    check_model,
    output_room,
    refuse_unsupported,
    within_context,
)
from vertumnusd.node.api.response_events import Echo, ResponseEvents
from vertumnusd.node.errors import RequestError, invalid
from vertumnusd.node.exchange import Exchange
from vertumnusd.node.gate import Gate
from vertumnusd.node.generation import Outcome, Silence, generate
from vertumnusd.node.keys import Tenant
from vertumnusd.node.service import Job
from vertumnusd.node.tokens import Told

Key = Annotated[str, Meta(max_length=64)]
Value = Annotated[str, Meta(max_length=512)]
Metadata = Annotated[dict[Key, Value], Meta(max_length=16)]

UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "background": (False,),
    "conversation": (),
    "prompt": (),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}


class TextFormat(msgspec.Struct, frozen=True):
    type: str = "text"


class TextOptions(msgspec.Struct, frozen=True):
    format: TextFormat | None = None


class ResponseRequest(GenerationFields, frozen=True, kw_only=True):
    """``generate`` false prefills, keeps the prefix and generates nothing."""

    input: str | list[Message] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: Positive | None = None
    metadata: Metadata | None = None
    generate: bool | None = None
    text: TextOptions | None = None
    include: list[str] | None = None
    background: Any = None
    conversation: Any = None
    prompt: Any = None
    tools: Any = None
    tool_choice: Any = None
    top_logprobs: Any = None
    truncation: Any = None


@dataclass(frozen=True, slots=True)
class Remembered:
    """A conversation up to and with a response; ``told`` is None if that said nothing."""

    messages: tuple[dict[str, str], ...]  # without instructions: those are of one request only
    told: Told | None


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked request: the job, and what has to be remembered of it afterwards."""

    job: Job
    messages: tuple[dict[str, str], ...]
    told: Told

    def remember(self, gate: Gate, outcome: Outcome) -> Remembered:
        if outcome.finished.reason == "prefilled":
            return Remembered(self.messages, None)
        answer = {"role": "assistant", "content": outcome.text}
        told = gate.tokens.answered(self.told, outcome.text, outcome.drawn)
        return Remembered((*self.messages, answer), told)


async def respond(exchange: Exchange, gate: Gate) -> None:
    request = exchange.read(ResponseRequest)
    check(gate, request)
    stream = exchange.events()
    events = ResponseEvents(lambda event: stream.send(event, event["type"]), echo(gate, request))
    asked = await ask(gate, exchange.tenant, events.id, request, find({}, request))
    if not request.stream:
        outcome = await generate(gate, asked.job, (), Silence())
        await exchange.json(events.whole(outcome))
        return
    try:
        await events.finish(await generate(gate, asked.job, (), events))
    except RequestError as error:
        if not events.started:
            raise
        await events.fail(error)
    await stream.end()


def check(gate: Gate, request: ResponseRequest) -> None:
    """Raises :class:`RequestError` for what cannot be answered, before any text is looked at."""
    check_model(gate, request.model)
    refuse_unsupported(request, UNSUPPORTED)
    if request.text and request.text.format and request.text.format.type != "text":
        raise invalid("only plain text is supported", "text.format", "unsupported_parameter")
    if any("logprobs" in name for name in request.include or ()):
        raise invalid("log probabilities are not supported", "include", "unsupported_parameter")


def echo(gate: Gate, request: ResponseRequest) -> Echo:
    sampling = request.sampling()
    return Echo(
        model=gate.service.model.name,
        max_output_tokens=request.max_output_tokens,
        metadata=request.metadata or {},
        previous_response_id=request.previous_response_id,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
    )


def find(remembered: Mapping[str, Remembered], request: ResponseRequest) -> Remembered:
    """The conversation that ``request`` continues. Raises :class:`RequestError`."""
    previous = request.previous_response_id
    if previous is None:
        return Remembered((), None)
    if previous not in remembered:
        raise invalid(
            f"the response '{previous[:100]}' is not remembered here; send the whole conversation",
            "previous_response_id",
            "previous_response_not_found",
        )
    return remembered[previous]


async def ask(
    gate: Gate, tenant: Tenant, id: str, request: ResponseRequest, past: Remembered
) -> Asked:
    """Render and tokenise the conversation. Raises :class:`RequestError`."""
    arrived = trio.current_time()
    messages = (*past.messages, *_input(request))
    if request.instructions:
        shown = [{"role": "system", "content": request.instructions}, *messages]
    else:
        shown = list(messages)
    context = gate.service.model.context_tokens
    if len(shown) > context:
        raise invalid(f"{len(shown)} messages cannot fit {context} tokens", "input")
    chat = gate.tokens.chat(shown, most=context, told=past.told)
    told = await within_context(gate, chat, "input")
    ids = told.ids.tolist()
    most = 0 if request.generate is False else request.max_output_tokens
    job = Job(
        request=id,
        arrived=arrived,
        tokens=ids,
        max_new_tokens=output_room(gate, len(ids), most, "input"),
        sampling=request.sampling(),
        stop_tokens=gate.tokens.stop_tokens,
        salt=tenant.salt,
    )
    return Asked(job, messages, told)


def _input(request: ResponseRequest) -> list[dict[str, str]]:
    if isinstance(request.input, str):
        if not request.input:
            raise invalid("the input is empty", "input")
        return [{"role": "user", "content": request.input}]
    return conversation(request.input or (), "input")
