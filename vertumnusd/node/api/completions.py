"""POST /v1/completions: text or token ids in, text out, with no chat template between."""

from __future__ import annotations

import secrets
import time
from array import array
from collections.abc import Sequence
from typing import Any

import trio

from vertumnusd.messages import Placed
from vertumnusd.node.api.fields import (
    HARMLESS,
    CompletionFields,
    check_model,
    output_room,
    refuse_unsupported,
    within_context,
)
from vertumnusd.node.api.usage import completion_usage, finish_reason
from vertumnusd.node.errors import RequestError, invalid
from vertumnusd.node.exchange import EventStream, Exchange
from vertumnusd.node.gate import Gate
from vertumnusd.node.generation import Outcome, Silence, Sink, generate, timings
from vertumnusd.node.http import PeerGone
from vertumnusd.node.service import Job

UNSUPPORTED = {
    **HARMLESS,
    "logprobs": (),  # a number here, and 0 already asks for some
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
}


class CompletionRequest(CompletionFields, frozen=True, kw_only=True):
    """``prompt``: a text, token ids, or a list of either."""

    prompt: str | list[str | int | list[int]] | None = None
    best_of: Any = None
    echo: Any = None
    suffix: Any = None


async def complete(exchange: Exchange, gate: Gate) -> None:
    request = exchange.read(CompletionRequest)
    check_model(gate, request.model)
    refuse_unsupported(request, UNSUPPORTED)
    stops = request.stops()
    answer = _Answer(gate)
    jobs = [
        _job(gate, request, exchange, f"{answer.id}-{index}", ids)
        for index, ids in enumerate(await _prompts(gate, request))
    ]
    if not request.stream:
        outcomes = await _generate_all(gate, jobs, stops, [Silence()] * len(jobs))
        await exchange.json(answer.whole(outcomes))
        return
    events = exchange.events()
    async with events.errors():
        choices = [_Choice(events, answer, index) for index in range(len(jobs))]
        outcomes = await _generate_all(gate, jobs, stops, choices)
        for choice, outcome in zip(choices, outcomes, strict=True):
            await choice.finish(outcome)
        if request.include_usage:
            await events.send(answer.usage(outcomes))
        await events.end()


class _Answer:
    """The objects of one answer, and what all of them share."""

    def __init__(self, gate: Gate) -> None:
        self.id = f"cmpl-{secrets.token_hex(12)}"
        self._head = {
            "id": self.id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": gate.service.model.name,
        }

    def part(self, index: int, text: str, reason: str | None, **more: Any) -> dict[str, Any]:
        """A chunk of a stream."""
        return {**self._head, "choices": [_choice(index, text, reason)], **more}

    def usage(self, outcomes: Sequence[Outcome]) -> dict[str, Any]:
        """The last chunk of a stream, for those who ask for it."""
        return {**self._head, "choices": [], "usage": completion_usage(outcomes)}

    def whole(self, outcomes: Sequence[Outcome]) -> dict[str, Any]:
        times = [timings(outcome.finished) for outcome in outcomes]
        return {
            **self._head,
            "choices": [
                _choice(index, outcome.text, finish_reason(outcome))
                for index, outcome in enumerate(outcomes)
            ],
            "usage": completion_usage(outcomes),
            "vertumnus": times[0] if len(times) == 1 else times,
        }


class _Choice:
    """The sink of one choice of a streamed answer."""

    def __init__(self, events: EventStream, answer: _Answer, index: int) -> None:
        self._events = events
        self._answer = answer
        self._index = index

    async def placed(self, placed: Placed) -> None:
        """Clients of this endpoint expect choices in every event, so a placement has none."""

    async def text(self, delta: str) -> None:
        await self._events.send(self._answer.part(self._index, delta, None))

    async def finish(self, outcome: Outcome) -> None:
        times = timings(outcome.finished)
        end = self._answer.part(self._index, "", finish_reason(outcome), vertumnus=times)
        await self._events.send(end)


def _choice(index: int, text: str, reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


async def _prompts(gate: Gate, request: CompletionRequest) -> list[list[int]]:
    """The token ids of each prompt. Raises :class:`RequestError`."""
    prompt = request.prompt
    if isinstance(prompt, list) and set(map(type, prompt)) - {int}:
        if len(prompt) > gate.limits.prompts_per_request:
            most = gate.limits.prompts_per_request
            raise invalid(f"at most {most} prompts are allowed in one request", "prompt")
        return [await _prompt(gate, part, f"prompt[{index}]") for index, part in enumerate(prompt)]
    return [await _prompt(gate, prompt, "prompt")]


async def _prompt(gate: Gate, prompt: object, param: str) -> list[int]:
    if isinstance(prompt, str):
        encoding = gate.tokens.encode(prompt, most=gate.service.model.context_tokens)
        ids = await within_context(gate, encoding, param)
    elif isinstance(prompt, list):
        ids = _checked(prompt, gate.service.model.vocab, param)
    else:
        raise invalid("a prompt is text, token ids, or a list of either", param)
    if not ids:
        raise invalid("the prompt is empty", param)
    return ids


def _checked(ids: list[int], vocab: int, param: str) -> list[int]:
    """Looked at in C: a prompt may have a hundred thousand of them, and everybody waits."""
    try:
        allowed = max(array("I", ids), default=0) < vocab
    except OverflowError:
        allowed = False
    if not allowed:
        raise invalid(f"a token id must be between 0 and {vocab - 1}", param)
    return ids


def _job(
    gate: Gate, request: CompletionRequest, exchange: Exchange, id: str, ids: list[int]
) -> Job:
    return Job(
        request=id,
        arrived=exchange.arrived,
        tokens=ids,
        max_new_tokens=output_room(gate, len(ids), request.max_tokens, "prompt"),
        sampling=request.sampling(request.seed),
        stop_tokens=() if request.ignore_eos else gate.tokens.stop_tokens,
        salt=exchange.tenant.salt,
    )


async def _generate_all(
    gate: Gate, jobs: Sequence[Job], stops: Sequence[str], sinks: Sequence[Sink]
) -> list[Outcome]:
    """All jobs side by side; the first that fails ends the others."""
    outcomes: dict[int, Outcome] = {}
    errors: list[Exception] = []
    async with trio.open_nursery() as nursery:

        async def run(index: int) -> None:
            try:
                outcomes[index] = await generate(gate, jobs[index], stops, sinks[index])
            except (RequestError, PeerGone) as error:
                errors.append(error)
                nursery.cancel_scope.cancel()

        for index in range(len(jobs)):
            nursery.start_soon(run, index)
    if errors:
        raise errors[0]
    return [outcomes[index] for index in range(len(jobs))]
