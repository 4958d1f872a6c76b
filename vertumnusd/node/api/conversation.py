"""The messages of a conversation, in the shapes that chat completions and responses write them.

Both become a list of ``{"role", "content"}`` with plain text, which is what chat templates take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from vertumnusd.node.errors import invalid, unsupported

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
TEXT_PARTS = ("text", "input_text", "output_text")


class Part(msgspec.Struct, frozen=True):
    """A piece of a message's content."""

    type: str
    text: str | None = None


class Message(msgspec.Struct, frozen=True):
    """One message; ``type`` is only written by the Responses API, and is "message" there."""

    role: str | None = None
    content: str | list[Part] | None = None
    type: str | None = None
    tool_calls: Any = None


def conversation(messages: Sequence[Message], param: str = "messages") -> list[dict[str, str]]:
    """Raises :class:`RequestError` that names the message which cannot be used."""
    if not messages:
        raise invalid("there is no message", param)
    return [_plain(message, f"{param}[{index}]") for index, message in enumerate(messages)]


def _plain(message: Message, param: str) -> dict[str, str]:
    if message.type not in (None, "message"):
        raise unsupported(f"{param}.type", f"'{message.type[:100]}' is not supported")
    if message.tool_calls:
        raise unsupported(f"{param}.tool_calls")
    if message.role not in ROLES:
        allowed = ", ".join(ROLES)
        raise invalid(f"the role of a message is one of {allowed}", f"{param}.role")
    return {"role": ROLES[message.role], "content": _text(message, f"{param}.content")}


def _text(message: Message, param: str) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    if content is None:
        if message.role == "assistant":
            return ""
        raise invalid("a message needs content", param)
    for index, part in enumerate(content):
        if part.type not in TEXT_PARTS:
            raise unsupported(f"{param}[{index}].type", f"'{part.type[:100]}' is not supported")
        if part.text is None:
            raise invalid("a part of text needs a text", f"{param}[{index}].text")
    return "".join(part.text or "" for part in content)
