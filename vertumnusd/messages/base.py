"""What all messages are made of, and what several conversations speak of."""

from __future__ import annotations

from typing import Final

import msgspec

HASH_BYTES: Final = 16


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of everything sent: frozen, and tagged with its class name on the wire."""


class Sampling(msgspec.Struct, frozen=True):
    """How tokens are drawn. ``temperature`` 0 is greedy; ``seed`` makes draws repeatable."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
