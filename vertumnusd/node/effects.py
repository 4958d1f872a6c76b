"""What the hub does to the world: told to it once, so that tests can be the world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vertumnusd.messages import (
    Answer,
    ControlCommand,
    ControlEvent,
    Refused,
    Replicated,
    ToRank,
    TransferFailed,
)
from vertumnusd.node.accepted import Chain

Happened = ControlCommand | Refused | Replicated | TransferFailed


@dataclass(frozen=True, slots=True)
class Effects:
    """All of them return at once."""

    now: Callable[[], float]
    send: Callable[[int, ToRank], None]
    kill: Callable[[int], None]
    emit: Callable[[str, Answer], None]
    report: Callable[[Happened], None]  # what an operator may want to know of
    illegal: Callable[[ControlEvent, str], None]  # refused by the controller, and why
    chain: Chain
