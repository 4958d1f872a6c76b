"""POST /v1/admin/…: what operators do by hand. Answers tell what happened, or would happen."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote

import msgspec

from vertumnusd.messages import MOST_HOLD_S
from vertumnusd.node.errors import RequestError
from vertumnusd.node.exchange import Exchange
from vertumnusd.node.gate import Gate

WHY = "/v1/admin/why/"


class WorkersRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``dry_run``: only say what would be done."""

    workers: list[str]
    dry_run: bool = False


class HoldRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``for_s``: seconds from now; 0 lets the controller go on at once. ``by``: who asks."""

    for_s: Annotated[float, msgspec.Meta(ge=0, le=MOST_HOLD_S)]
    by: Annotated[str, msgspec.Meta(max_length=100)] = ""


class ReclaimRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``prefix``: as consoles call it, or more of the block's name. ``homes``: none are all."""

    prefix: str
    homes: list[int] = []
    dry_run: bool = False


async def convert(exchange: Exchange, gate: Gate, kind: str) -> None:
    """Split or merge. Answers when that is over, one way or the other, even if it was refused."""
    request = exchange.read(WorkersRequest)
    if request.dry_run:
        await exchange.json({"planned": gate.operator.plan(kind, request.workers)})
    else:
        await exchange.json({"converted": await gate.operator.convert(kind, request.workers)})


async def drain(exchange: Exchange, gate: Gate) -> None:
    """Answers when the workers run nothing any more."""
    request = exchange.read(WorkersRequest)
    if request.dry_run:
        await exchange.json({"planned": gate.operator.plan("drain", request.workers)})
    else:
        await exchange.json({"drained": await gate.operator.drain(request.workers)})


async def undrain(exchange: Exchange, gate: Gate) -> None:
    request = exchange.read(WorkersRequest)
    await exchange.json({"serving": gate.operator.undrain(request.workers)})


async def hold(exchange: Exchange, gate: Gate) -> None:
    """Refused at shutdown, where the node itself holds the controller until it has ended."""
    request = exchange.read(HoldRequest)
    if gate.draining.is_set():
        reason = "this node is shutting down: nothing begins by itself until it has ended"
        raise RequestError(409, "not_possible", reason)
    gate.operator.hold(request.for_s, request.by)
    await exchange.json({"held_s": request.for_s})


async def reclaim(exchange: Exchange, gate: Gate) -> None:
    """Answers at once; what the ranks delete they report."""
    request = exchange.read(ReclaimRequest)
    found = gate.operator.reclaim(request.prefix, request.homes, request.dry_run)
    await exchange.json({"planned" if request.dry_run else "reclaimed": found})


async def audit(exchange: Exchange, gate: Gate) -> None:
    await exchange.json({"ranks": await gate.operator.audit()})


async def why(exchange: Exchange, gate: Gate) -> None:
    what = unquote(exchange.head.path.removeprefix(WHY))
    await exchange.json({"why": gate.operator.why(what)})
