"""What the controller shows: one JSON-ready picture for ``/v1/cluster`` and the console."""

from __future__ import annotations

from collections import Counter
from typing import Any

from vertumnusd.control.fleet import Fleet, Standing, Worker, composition_name
from vertumnusd.control.ledger import Ledger
from vertumnusd.control.reconfig import Operations
from vertumnusd.control.scheduler import Scheduler


def snapshot(
    now: float, fleet: Fleet, scheduler: Scheduler, operations: Operations
) -> dict[str, Any]:
    ledger = scheduler.ledger
    return {
        "term": fleet.term,
        "epoch": fleet.epoch,
        "composition": composition_name(fleet.standings),
        "workers": [_worker(w, fleet.standings[w], ledger) for w in _by_rank(fleet)],
        "operations": operations.snapshot(now),
        "homes": ledger.homes.snapshot(),
        "prefixes": scheduler.matching.trie.snapshot(),
        "decode": ledger.decode.snapshot(),
        "waiting": _waiting(now, ledger),
        "totals": dict(ledger.totals),
        "slo": scheduler.slo.snapshot(),
    }


def _by_rank(fleet: Fleet) -> list[Worker]:
    return sorted(fleet.standings, key=lambda worker: worker.base)


def _worker(worker: Worker, standing: Standing, ledger: Ledger) -> dict[str, Any]:
    queue = ledger.queues.get(worker) or ledger.draining.get(worker)
    idle = {"queue_s": 0.0, "waiting": 0, "running": [], "blocked": ""}
    return {
        "name": worker.name,
        "state": standing.state.value,
        "degree": worker.degree,
        "ranks": list(worker.ranks),
        "epoch": standing.epoch,
        **(queue.snapshot() if queue else idle),
    }


def _waiting(now: float, ledger: Ledger) -> dict[str, Any]:
    """What is not dispatched, and why: each request waits for what the first of its queue does."""
    reasons = Counter({"no worker serves": len(ledger.unplaced)})
    for queue in ledger.queues.values():
        reasons[queue.blocked.value if queue.blocked else "worker busy"] += len(queue.waiting)
    queued = [r for r in ledger.requests.values() if r.stage.queued]
    oldest = min((request.accepted_at for request in queued), default=now)
    return {
        "requests": len(queued),
        "tokens": ledger.queued_tokens,
        "oldest_s": now - oldest,
        "reasons": {reason: count for reason, count in reasons.items() if count},
    }
