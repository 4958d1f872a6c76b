"""What is wrong, in a line each, the gravest first: what an operator woken at night looks for.

Each says what, since when, and where there is one the reason that the node gave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from vertumnus_tui.cluster import Cluster, Operation, Worker
from vertumnus_tui.model import Model
from vertumnus_tui.numbers import duration, percent, seconds
from vertumnus_tui.recent import LATELY_S
from vertumnus_tui.status import Lost, Status

SLOW_DRAIN_S = 5.0  # and three times what was predicted
LONG_DRAIN_S = 60.0  # by hand, which has no prediction
LONG_WAIT_S = 10.0


class Alarm(NamedTuple):
    """``style``: "bad" where something does not work, "warn" where somebody should look."""

    style: str
    text: str

    @property
    def mark(self) -> str:
        return "x" if self.style == "bad" else "!"


def alarms(model: Model, status: Status) -> list[Alarm]:
    if not model.known:
        return []
    found = [
        *_stale(model, status),
        *_down(model),
        *_service(model.cluster),
        *_refused(model),
        *_drains(model),
        *_operations(model.cluster),
        *_load(model.cluster),
        *_held(model),
    ]
    return sorted(found, key=lambda alarm: alarm.style != "bad")


def _stale(model: Model, status: Status) -> Iterator[Alarm]:
    if isinstance(status, Lost):
        yield Alarm("bad", f"this is how it was at {model.clock(model.t)}: {status.reason}")


def _down(model: Model) -> Iterator[Alarm]:
    """Ranks that went down together are told together."""
    cluster = model.cluster
    prefill = [rank for worker in cluster.workers for rank in worker.ranks_down]
    decode = [pool.rank for pool in cluster.decode if not pool.up]
    for kind, ranks in (("prefill", prefill), ("decode", decode)):
        causes: dict[str, list[int]] = {}
        for rank in ranks:
            down = model.recent.down.get((kind, rank))
            since = f" for {model.ago(down.t)}: {down.reason}" if down else ""
            causes.setdefault(since, []).append(rank)
        for since, together in causes.items():
            plural = "s" if len(together) > 1 else ""
            yield Alarm("bad", f"{kind} rank{plural} {_few(together)} down{since}")


def _few(ranks: list[int]) -> str:
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return f"{' '.join(map(str, ranks[:4]))}{more}"


def _service(cluster: Cluster) -> Iterator[Alarm]:
    if cluster.unready:
        yield Alarm("bad", f"takes no requests: {cluster.unready}")
    elif cluster.workers and not any(w.state == "serving" for w in cluster.workers):
        yield Alarm("bad", "no worker serves")


def _refused(model: Model) -> Iterator[Alarm]:
    reasons = Counter(model.recent.refusals(model.t))
    if reasons:
        ((reason, _),) = reasons.most_common(1)
        yield Alarm(
            "bad", f"{reasons.total()} requests refused in the last {duration(LATELY_S)}: {reason}"
        )


def _drains(model: Model) -> Iterator[Alarm]:
    """Those by hand: one that takes long, and workers that nobody gave back."""
    workers = {worker.name: worker for worker in model.cluster.workers}
    for drain in model.cluster.drains:
        since = model.recent.draining.get(drain.worker)
        for_s = model.t - since if since is not None else 0.0
        if drain.drained:
            lasting = f", asked for {duration(for_s)} ago" if since is not None else ""
            yield Alarm("warn", f"{drain.worker} is out of service, drained by hand{lasting}")
        elif for_s > LONG_DRAIN_S:
            worker = workers.get(drain.worker)
            yield Alarm("warn", f"{drain.worker} drains for {duration(for_s)}{_runs(worker)}")


def _runs(*workers: Worker | None) -> str:
    running = [name for worker in workers if worker for name in worker.running]
    return f", still runs {' '.join(running)}" if running else ""


def _operations(cluster: Cluster) -> Iterator[Alarm]:
    for operation in cluster.operations:
        if _drains_long(operation):
            workers = [w for w in cluster.workers if w.name in operation.before]
            yield Alarm(
                "warn",
                f"{operation.kind} of {' '.join(operation.before)} drains for"
                f" {duration(operation.drain_s or 0)}, {seconds(operation.predicted_drain_s)} s"
                f" were predicted{_runs(*workers)}",
            )


def _drains_long(operation: Operation) -> bool:
    longest_s = max(SLOW_DRAIN_S, 3 * (operation.predicted_drain_s or 0.0))
    return operation.phase == "drain" and (operation.drain_s or 0.0) > longest_s


def _load(cluster: Cluster) -> Iterator[Alarm]:
    waiting, decision = cluster.waiting, cluster.decision
    if waiting.requests and waiting.oldest_s > LONG_WAIT_S:
        why = ", ".join(f"{n} for: {reason}" for reason, n in waiting.reasons.items())
        oldest = duration(waiting.oldest_s)
        yield Alarm("warn", f"{waiting.requests} requests wait, the oldest for {oldest} ({why})")
    capacity_s = cluster.adaptation.capacity_s
    if decision and capacity_s and decision.demand_s > capacity_s:
        share = percent(decision.demand_s / capacity_s)
        yield Alarm("warn", f"demand is {share} of what the workers can compute: queues grow")


def _held(model: Model) -> Iterator[Alarm]:
    seen = model.cluster.adaptation
    if seen.held_until is not None:
        by = f" by {seen.held_by}" if seen.held_by else ""
        left = duration(seen.held_until - model.t)
        yield Alarm("warn", f"held{by}: nothing is split, merged or copied by itself for {left}")
