"""GET endpoints that tell of the server: its model, its health, its metrics, its cluster."""

from __future__ import annotations

import time
from typing import Any

from vertumnusd import __version__
from vertumnusd.compiled import DECISIONS
from vertumnusd.node.errors import RequestError
from vertumnusd.node.exchange import Exchange
from vertumnusd.node.gate import Gate
from vertumnusd.node.metrics import CONTENT_TYPE

_STARTED_AT = int(time.time())


async def models(exchange: Exchange, gate: Gate) -> None:
    await exchange.json({"object": "list", "data": [_model(gate)]})


async def model(exchange: Exchange, gate: Gate, name: str) -> None:
    if name != gate.service.model.name:
        raise RequestError(404, "model_not_found", f"the model '{name[:200]}' is not served here")
    await exchange.json(_model(gate))


async def health(exchange: Exchange, gate: Gate) -> None:
    """Ready to take work? For load balancers."""
    if reason := gate.unready_reason():
        await exchange.json({"status": "unready", "reason": reason}, status=503)
    else:
        await exchange.json({"status": "ready"})


async def live(exchange: Exchange, gate: Gate) -> None:
    """Does the daemon run? For supervisors: whatever the ranks do, this answers."""
    await exchange.json({"status": "alive"})


async def version(exchange: Exchange, gate: Gate) -> None:
    await exchange.json({"version": __version__, "decisions": DECISIONS})


async def metrics(exchange: Exchange, gate: Gate) -> None:
    await exchange.bytes(gate.metrics.render(), CONTENT_TYPE)


async def cluster(exchange: Exchange, gate: Gate) -> None:
    await exchange.json(gate.service.cluster())


def _model(gate: Gate) -> dict[str, Any]:
    info = gate.service.model
    return {
        "id": info.name,
        "object": "model",
        "created": _STARTED_AT,
        "owned_by": "vertumnus",
        "max_model_len": info.context_tokens,
    }
