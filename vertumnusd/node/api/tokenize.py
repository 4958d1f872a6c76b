"""POST /tokenize and /detokenize: what the model sees of a text, and the way back."""

from __future__ import annotations

import msgspec

from vertumnusd.node.api.conversation import Message, conversation
from vertumnusd.node.api.fields import check_model, within_context
from vertumnusd.node.errors import invalid
from vertumnusd.node.exchange import Exchange
from vertumnusd.node.gate import Gate


class TokenizeRequest(msgspec.Struct, frozen=True):
    """``prompt`` is plain text; ``messages`` go through the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool = True


class DetokenizeRequest(msgspec.Struct, frozen=True):
    tokens: list[int]
    model: str | None = None


async def tokenize(exchange: Exchange, gate: Gate) -> None:
    request = exchange.read(TokenizeRequest)
    check_model(gate, request.model)
    if (request.prompt is None) == (request.messages is None):
        raise invalid("either 'prompt' or 'messages' is needed", "prompt")
    context = gate.service.model.context_tokens
    if request.messages is not None:
        chat = gate.tokens.chat(conversation(request.messages), most=context)
        ids = (await within_context(gate, chat, "messages")).ids.tolist()
    else:
        text = gate.tokens.encode(
            request.prompt or "", most=context, begin=request.add_special_tokens
        )
        ids = await within_context(gate, text, "prompt")
    await exchange.json({"count": len(ids), "max_model_len": context, "tokens": ids})


async def detokenize(exchange: Exchange, gate: Gate) -> None:
    request = exchange.read(DetokenizeRequest)
    check_model(gate, request.model)
    model = gate.service.model
    if len(request.tokens) > model.context_tokens:
        raise invalid(f"at most {model.context_tokens} tokens are decoded at once", "tokens")
    if not all(0 <= id < model.vocab for id in request.tokens):
        raise invalid(f"a token id must be between 0 and {model.vocab - 1}", "tokens")
    await exchange.json({"prompt": gate.tokens.decode(request.tokens)})
