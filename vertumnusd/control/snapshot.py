"""What the controller shows: one JSON-ready picture for ``/v1/cluster`` and the console.

Points in time are on the clock of the controller's ``now``, so that a picture changes only where
the cluster does.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import msgspec

from vertumnusd.control.fleet import Fleet, Worker, composition_name
from vertumnusd.control.hot_prefixes import prefix_name
from vertumnusd.control.ledger import Ledger
from vertumnusd.control.reconfig import Operations
from vertumnusd.control.request import Request
from vertumnusd.control.scheduler import Scheduler
from vertumnusd.control.settings import Settings
from vertumnusd.control.stage import Stage
from vertumnusd.messages import (
    HASH_BYTES,
    ControlCommand,
    ControlEvent,
    Converted,
    Converting,
    Decided,
    DrainWorker,
    Exposed,
    Held,
    Lost,
    Placed,
    RankDown,
    RankUp,
    Reclaim,
    Refused,
    Reject,
    Replicate,
    Replicated,
    Resume,
    TransferFailed,
    Withdrawn,
    WorkerDrained,
)

OF_INTEREST = (
    *(Placed, Reject, Lost),
    *(RankUp, RankDown, Exposed, Withdrawn, Refused),
    *(Decided, Held, Converting, Converted),
    *(DrainWorker, WorkerDrained, Resume),
    *(Replicate, Replicated, TransferFailed, Reclaim),
)
REQUESTS_SHOWN = 200  # the oldest ones; a long queue is told by its length

PHASES = {
    Stage.UNPLACED: "unplaced",
    Stage.FETCHING: "fetching",
    Stage.WAITING: "waiting",
    Stage.DISPATCHED: "prefilling",
    Stage.PREFILLED: "handing off",
    Stage.HANDED_OFF: "decoding",
}


def show_event(event: ControlCommand | ControlEvent | Refused) -> dict[str, Any] | None:
    """For consoles: JSON-ready, with counts and a short name in place of block hashes.

    None for what an operator does not care for.
    """
    if not isinstance(event, OF_INTEREST):
        return None
    shown: dict[str, Any] = msgspec.to_builtins(event)
    match event:
        case Placed():
            del shown["others"]  # `vertumnusd why` tells them
        case Replicate():
            del shown["chain"]
            shown["prefix"] = prefix_name(event.chain[-HASH_BYTES:])
            shown["blocks"] = len(event.chain) // HASH_BYTES - event.first_block
        case Reclaim():
            shown["prefix"] = prefix_name(event.blocks[-HASH_BYTES:])
            shown["blocks"] = len(event.blocks) // HASH_BYTES
    return shown


def snapshot(
    now: float, settings: Settings, fleet: Fleet, scheduler: Scheduler, operations: Operations
) -> dict[str, Any]:
    ledger = scheduler.ledger
    return {
        "term": fleet.term,
        "epoch": fleet.epoch,
        "composition": composition_name(fleet.standings),
        "geometry": {
            "ranks": settings.ranks,
            "cp_degrees": sorted(settings.cp_degrees),
            "home_ranks": settings.home_ranks,
            "block_tokens": settings.block_tokens,
            "kv_blocks": settings.kv_blocks,
        },
        "workers": [_worker(w, fleet, ledger) for w in _by_rank(fleet)],
        "operations": operations.snapshot(now),
        "homes": ledger.homes.snapshot(),
        "prefixes": scheduler.matching.trie.snapshot(),
        "decode": ledger.decode.snapshot(),
        "transfers": scheduler.copies.snapshot(),
        "waiting": _waiting(now, ledger),
        "totals": dict(ledger.totals),
        "slo": scheduler.slo.snapshot(),
        "requests": [_request(r) for r in islice(ledger.requests.values(), REQUESTS_SHOWN)],
    }


def _by_rank(fleet: Fleet) -> list[Worker]:
    return sorted(fleet.standings, key=lambda worker: worker.base)


def _worker(worker: Worker, fleet: Fleet, ledger: Ledger) -> dict[str, Any]:
    standing = fleet.standings[worker]
    queue = ledger.queues.get(worker) or ledger.draining.get(worker) or ledger.new_queue(worker)
    return {
        "name": worker.name,
        "state": standing.state.value,
        "degree": worker.degree,
        "ranks": list(worker.ranks),
        "ranks_down": [rank for rank in worker.ranks if not fleet.is_up(rank)],
        "epoch": standing.epoch,
        **queue.snapshot(),
    }


def _request(request: Request) -> dict[str, Any]:
    return {
        "request": request.name,
        "attempt": request.submit.attempt,
        "phase": PHASES[request.stage],
        "worker": request.worker.name if request.worker else None,
        "input_tokens": request.input_tokens,
        "predicted_s": request.predicted_ns / 1e9,
        "accepted_at": request.accepted_at,
        "decode_rank": request.decode_rank,
    }


def _waiting(now: float, ledger: Ledger) -> dict[str, Any]:
    """What is not dispatched, and why: each request waits for what the first of its queue does."""
    reasons = Counter({"no worker serves": len(ledger.unplaced)})
    for queue in ledger.queues.values():
        reasons[queue.blocked.value if queue.blocked else "worker busy"] += len(queue.waiting)
        reasons["prefix is fetched"] += len(queue.fetching)
    queued = [r for r in ledger.requests.values() if r.stage.queued]
    oldest = min((request.accepted_at for request in queued), default=now)
    return {
        "requests": len(queued),
        "tokens": ledger.queued_tokens,
        "oldest_s": now - oldest,
        "reasons": {reason: count for reason, count in reasons.items() if count},
    }
