"""What requests of several endpoints have in common: reading them, checking them, sizing them.

A field that this server does not know is ignored, as OpenAI's servers do. A field that it knows and
cannot honour is refused by name if it would change the meaning of the answer.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from vertumnusd.messages import Sampling
from vertumnusd.node.errors import RequestError, invalid, unsupported
from vertumnusd.node.gate import Gate
from vertumnusd.node.tokens import TooManyTokens

T = TypeVar("T")

MAX_STOPS = 4
MAX_STOP_CHARACTERS = 256
SEED_BITS = 63

Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(gt=0, le=1)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]

_PATH = re.compile(r"^(?P<message>.*) - at `\$\.?(?P<path>.*)`$", re.DOTALL)


class StreamOptions(msgspec.Struct, frozen=True):
    """``include_usage``: one more chunk, with the usage and no choices, ends the stream."""

    include_usage: bool | None = None


class GenerationFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of every request that generates. Without a temperature the answer is greedy."""

    model: str | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    stream: bool | None = None

    def sampling(self, seed: int | None = None) -> Sampling:
        """Without a seed every request draws its own."""
        return Sampling(
            temperature=0.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            seed=secrets.randbits(SEED_BITS) if seed is None else seed % 2**SEED_BITS,
        )


class CompletionFields(GenerationFields, frozen=True, kw_only=True):
    """Fields that /v1/completions and /v1/chat/completions share."""

    max_tokens: Count | None = None
    seed: Seed | None = None
    stop: str | list[str] | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None  # go on to the maximum, for benchmarks; as in vLLM
    n: Any = None
    logprobs: Any = None
    logit_bias: Any = None
    frequency_penalty: Any = None
    presence_penalty: Any = None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def stops(self) -> tuple[str, ...]:
        """The stop strings, checked."""
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if len(stops) > MAX_STOPS:
            raise invalid(f"at most {MAX_STOPS} stop strings are allowed", "stop")
        if not all(0 < len(stop) <= MAX_STOP_CHARACTERS for stop in stops):
            raise invalid(f"a stop string has 1 to {MAX_STOP_CHARACTERS} characters", "stop")
        return stops


# Values that say no more than leaving the field out.
HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
}


def decode(body: bytes | str, type_: type[T]) -> T:
    """JSON from a client. Raises :class:`RequestError` with the path of what is wrong."""
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.ValidationError as error:
        match = _PATH.match(str(error))
        if match is None:
            raise invalid(str(error), code="invalid_type") from error
        path = match["path"] or None
        where = f" - at '{path}'" if path else ""
        raise invalid(match["message"] + where, path, "invalid_type") from error
    except RecursionError as error:
        raise invalid("the JSON is nested too deeply", code="invalid_json") from error
    except (msgspec.DecodeError, UnicodeError, ValueError) as error:
        raise invalid(f"the JSON cannot be read: {error}", code="invalid_json") from error


def refuse_unsupported(request: msgspec.Struct, harmless: Mapping[str, tuple[Any, ...]]) -> None:
    """``harmless``: fields that cannot be honoured, with the values that ask for nothing."""
    for name, values in harmless.items():
        value = getattr(request, name)
        if value is not None and not any(
            type(value) in (type(other), float) and value == other for other in values
        ):
            raise unsupported(name)


def check_model(gate: Gate, model: str | None) -> None:
    """A request may leave the model out; one that names another is refused."""
    served = gate.service.model.name
    if model and model != served:
        raise RequestError(
            404,
            "model_not_found",
            f"the model '{model[:200]}' is not served here; '{served}' is",
            "model",
        )


def output_room(gate: Gate, input_tokens: int, asked: int | None, param: str) -> int:
    """How many tokens may be drawn after ``input_tokens``; ``asked`` is the client's maximum.

    Raises :class:`RequestError` if prompt and answer do not fit the context or the KV pools.
    """
    context = gate.service.model.context_tokens
    capacity = gate.service.kv_capacity_tokens
    least = 1 if asked is None else asked
    if input_tokens + least > context:
        raise _too_long(_context(gate), str(input_tokens), least, param)
    if input_tokens + least > capacity:
        raise _too_long(f"the KV memory holds {capacity} tokens", str(input_tokens), least, param)
    if asked is not None:
        return asked
    return min(context - input_tokens, capacity - input_tokens, gate.limits.default_output_tokens)


async def within_context(gate: Gate, tokens: Awaitable[T], param: str) -> T:
    """Await tokenising, and turn too many tokens into the client's error."""
    try:
        return await tokens
    except TooManyTokens as error:
        raise _too_long(_context(gate), f"at least {error.count}", 1, param) from error


def _context(gate: Gate) -> str:
    return f"this model's context has {gate.service.model.context_tokens} tokens"


def _too_long(what: str, input_tokens: str, output_tokens: int, param: str) -> RequestError:
    return invalid(
        f"{what}; the prompt has {input_tokens}, and {output_tokens} or more are to follow",
        param,
        "context_length_exceeded",
    )
