"""How a checkpoint that cannot be served is refused: by what was found, and what is allowed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


class CheckpointError(Exception):
    """The checkpoint cannot be served; the message says what is wrong and what is allowed."""


def need(what: str, found: Any, allowed: Any) -> None:
    if found != allowed:
        raise CheckpointError(f"{what} is {found!r}; only {allowed!r} is supported")


def need_one(what: str, found: Any, allowed: Collection[str]) -> str:
    if found not in allowed:
        raise CheckpointError(f"{what} {found!r}; supported are {', '.join(allowed)}")
    return str(found)
