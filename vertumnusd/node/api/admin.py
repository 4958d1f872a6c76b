"""POST /v1/admin/…: what operators do by hand. Answers tell what happened, or would happen."""

from __future__ import annotations

import msgspec

from vertumnusd.node.exchange import Exchange
from vertumnusd.node.gate import Gate


class WorkersRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``dry_run``: only say what would be done."""

    workers: list[str]
    dry_run: bool = False


async def convert(exchange: Exchange, gate: Gate, kind: str) -> None:
    """Split or merge. Answers when that is over, one way or the other, even if it was refused."""
    request = exchange.read(WorkersRequest)
    if request.dry_run:
        await exchange.json({"planned": gate.operator.plan(kind, request.workers)})
    else:
        await exchange.json({"converted": await gate.operator.convert(kind, request.workers)})
