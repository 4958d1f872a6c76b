"""What operators do by hand, over the hub: implements :class:`service.Operator`.

An order names workers as ``GET /v1/cluster`` does. All of it is checked before any of it begins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import trio

from vertumnusd.control.errors import IllegalEvent
from vertumnusd.control.fleet import Worker, parent, parts
from vertumnusd.control.prefix_audit import RankAudit
from vertumnusd.messages import (
    HASH_BYTES,
    ControlCommand,
    Converted,
    Converting,
    Drain,
    Hold,
    Merge,
    Reclaim,
    ReclaimPrefix,
    Resume,
    Split,
    Undrain,
    WorkerDrained,
)
from vertumnusd.node.errors import RequestError, invalid
from vertumnusd.node.hub import Hub
from vertumnusd.node.records import Records

ALL = "all"
_PREFIX = re.compile(r"([0-9a-f]{2}){4,16}")
AUDIT_S = 10.0
LAST_RECONFIGURATION, LAST_DECISION = "last-reconfiguration", "last-decision"


@dataclass(slots=True, eq=False)
class _Waiter:
    """Somebody who waits for the end of something: an operation's number, or a worker's name."""

    what: int | str
    ended: trio.Event = field(default_factory=trio.Event)
    ending: Converted | WorkerDrained | Resume | None = None


class Administration:
    """``report`` is to hear everything that the controller commands."""

    def __init__(self, hub: Hub, records: Records, cp_degrees: Sequence[int]) -> None:
        self._hub = hub
        self._records = records
        self._cp_degrees = cp_degrees
        self._waiters: set[_Waiter] = set()

    def report(self, command: ControlCommand) -> None:
        if isinstance(command, Converted | WorkerDrained | Resume):
            what = command.operation if isinstance(command, Converted) else command.worker
            for waiter in self._waiters:
                if waiter.what == what:
                    waiter.ending = command
                    waiter.ended.set()

    # --- orders

    def plan(self, kind: str, workers: Sequence[str]) -> list[dict[str, Any]]:
        if kind == "drain":
            return self._plan_drain(self._find_serving(workers))
        return [msgspec.to_builtins(self._plan(event)) for event in self._events(kind, workers)]

    async def convert(self, kind: str, workers: Sequence[str]) -> list[dict[str, Any]]:
        events = self._events(kind, workers)
        for event in events:
            self._plan(event)
        commands = [command for event in events for command in self._hub.command(event)]
        begun = [command.operation for command in commands if isinstance(command, Converting)]
        return await self._endings(begun)

    async def drain(self, workers: Sequence[str]) -> list[dict[str, Any]]:
        found = self._find_serving(workers)
        self._plan_drain(found)
        with self._waiting([worker.name for worker in found]) as waiters:
            for worker in found:
                self._hub.command(Drain(worker.degree, worker.base))
            return await _endings_of(waiters)

    def undrain(self, workers: Sequence[str]) -> list[str]:
        drained = [entry["worker"] for entry in self._hub.snapshot()["drains"]]
        if list(workers) == [ALL]:
            workers = drained
        found = self._find(workers) if workers else []
        for worker in found:
            if worker.name not in drained:
                raise _not_possible(f"{worker.name} is not drained")
        for worker in found:
            self._hub.command(Undrain(worker.degree, worker.base))
        return [worker.name for worker in found]

    def hold(self, for_s: float, by: str) -> None:
        self._hub.command(Hold(for_s, by))

    def reclaim(self, prefix: str, homes: Sequence[int], dry_run: bool) -> list[dict[str, Any]]:
        block, reclaims = self._find_prefix(prefix)
        holders = [each.home for each in reclaims]
        for home in homes:
            if home not in holders:
                there = " ".join(map(str, holders))
                raise _not_possible(f"home {home} does not hold {prefix}; homes {there} do")
        chosen = [each for each in reclaims if not homes or each.home in homes]
        if not dry_run:
            chosen = [self._reclaim(block, each) for each in chosen]
        return [
            {"prefix": block.hex(), "home": each.home, "blocks": len(each.blocks) // HASH_BYTES}
            for each in chosen
        ]

    def _reclaim(self, block: bytes, planned: Reclaim) -> Reclaim:
        """What is really deleted: nothing, if it is needed by now."""
        try:
            commands = self._hub.command(ReclaimPrefix(block, planned.home))
        except IllegalEvent:
            return msgspec.structs.replace(planned, blocks=b"")
        return next(command for command in commands if isinstance(command, Reclaim))

    def why(self, what: str) -> list[dict[str, Any]]:
        if what == LAST_RECONFIGURATION:
            return self._records.last_conversion()
        if what == LAST_DECISION:
            return self._records.last_decision()
        if entries := self._records.request(what):
            return entries
        raise RequestError(
            404,
            "unknown_request",
            f"there is no request '{what[:80]}' in the records; what can be asked for is the id of"
            f" a recent answer, {LAST_RECONFIGURATION} or {LAST_DECISION}",
        )

    async def audit(self) -> list[dict[str, Any]]:
        """A rank that is down, or does not answer in time, has an entry that says so."""
        workers = self._hub.snapshot()["workers"]
        ranks = {rank for w in workers for rank in w["ranks"] if rank not in w["ranks_down"]}
        done: dict[int, RankAudit] = {}
        all_done = trio.Event()

        def ended(audit: RankAudit) -> None:
            done[audit.rank] = audit
            if done.keys() >= ranks:
                all_done.set()

        self._hub.audit(sorted(ranks), ended)
        with trio.move_on_after(AUDIT_S if ranks else 0):
            await all_done.wait()
        everyone = sorted(rank for worker in workers for rank in worker["ranks"])
        return [_audited(rank, done.get(rank)) for rank in everyone]

    # --- waiting for the end

    async def _endings(self, operations: Sequence[int]) -> list[dict[str, Any]]:
        with self._waiting(operations) as waiters:
            return await _endings_of(waiters)

    @contextmanager
    def _waiting(self, whats: Sequence[int | str]) -> Iterator[list[_Waiter]]:
        waiters = [_Waiter(what) for what in whats]
        self._waiters.update(waiters)
        try:
            yield waiters
        finally:
            self._waiters.difference_update(waiters)

    # --- checks

    def _plan(self, event: Split | Merge) -> Converting:
        try:
            return self._hub.plan(event)
        except IllegalEvent as error:
            raise _not_possible(str(error)) from error

    def _plan_drain(self, workers: Sequence[Worker]) -> list[dict[str, Any]]:
        view = {worker["name"]: worker for worker in self._hub.snapshot()["workers"]}
        planned = []
        for worker in workers:
            state = view[worker.name]["state"]
            if state != "serving":
                raise _not_possible(f"{worker.name} does not serve, it is {state}")
            planned.append({"worker": worker.name, "running": view[worker.name]["running"]})
        return planned

    def _events(self, kind: str, names: Sequence[str]) -> list[Split | Merge]:
        workers = self._find(names)
        if kind == "split":
            return [Split(worker.degree, worker.base) for worker in workers]
        return [Merge(merged.degree, merged.base) for merged in self._merged(workers)]

    def _merged(self, workers: Sequence[Worker]) -> list[Worker]:
        """What these workers make up, if no part of it is missing."""
        merged = {worker: parent(worker, self._cp_degrees) for worker in workers}
        for worker, larger in merged.items():
            if larger is None:
                raise _not_possible(f"{worker.name} is of the largest degree")
            siblings = parts(larger, self._cp_degrees)
            if missing := [w.name for w in siblings if w not in merged]:
                raise _not_possible(
                    f"{worker.name} merges with {' '.join(missing)} into {larger.name}: name all"
                )
        return list(dict.fromkeys(larger for larger in merged.values() if larger is not None))

    def _find_prefix(self, name: str) -> tuple[bytes, list[Reclaim]]:
        """The block that is so called, and what would be deleted of it, by home."""
        if not _PREFIX.fullmatch(name):
            raise invalid("a prefix is called by 8 to 32 hexadecimal digits", "prefix")
        found = self._hub.reclaims(bytes.fromhex(name))
        if not found:
            raise RequestError(404, "unknown_prefix", f"no home holds a prefix {name}")
        if len(found) > 1:
            raise invalid(f"more than one: {' '.join(each.hex() for each in found)}", "prefix")
        return next(iter(found.items()))

    def _find_serving(self, names: Sequence[str]) -> list[Worker]:
        """As :meth:`_find`, but "all" are those that serve."""
        if list(names) != [ALL]:
            return self._find(names)
        workers = self._hub.snapshot()["workers"]
        serving = [worker["name"] for worker in workers if worker["state"] == "serving"]
        if not serving:
            raise _not_possible("no worker serves")
        return self._find(serving)

    def _find(self, names: Sequence[str]) -> list[Worker]:
        """Raises :class:`RequestError` naming the workers there are."""
        workers = {
            worker["name"]: Worker(worker["degree"], worker["ranks"][0])
            for worker in self._hub.snapshot()["workers"]
        }
        if not names:
            raise invalid("name at least one worker", "workers")
        for name in names:
            if name not in workers:
                raise _unknown(name, workers)
        return [workers[name] for name in dict.fromkeys(names)]


def _audited(rank: int, audit: RankAudit | None) -> dict[str, Any]:
    if audit is None or audit.differences is None:
        return {"rank": rank, "answered": False}
    return {
        "rank": rank,
        "answered": True,
        "held_blocks": audit.held_blocks,
        "wrong_blocks": len(audit.differences.wrong),
        "unknown_blocks": len(audit.differences.missing),
    }


async def _endings_of(waiters: Sequence[_Waiter]) -> list[dict[str, Any]]:
    for waiter in waiters:
        await waiter.ended.wait()
    return [msgspec.to_builtins(waiter.ending) for waiter in waiters]


def _not_possible(reason: str) -> RequestError:
    return RequestError(409, "not_possible", reason)


def _unknown(name: str, workers: Iterable[str]) -> RequestError:
    return RequestError(
        404, "unknown_worker", f"there is no worker '{name[:50]}'; there are {' '.join(workers)}"
    )
