"""What operators do by hand, over the hub: implements :class:`service.Operator`.

An order names workers as ``GET /v1/cluster`` does. All of it is checked before any of it begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import trio

from vertumnusd.control.errors import IllegalEvent
from vertumnusd.control.fleet import Worker, parent, parts
from vertumnusd.messages import ControlCommand, Converted, Converting, Merge, Split
from vertumnusd.node.errors import RequestError, invalid
from vertumnusd.node.hub import Hub


@dataclass(slots=True)
class _Waiter:
    """Somebody who waits for the end of an operation."""

    ended: trio.Event = field(default_factory=trio.Event)
    converted: Converted | None = None


class Administration:
    """``report`` is to hear everything that the controller commands."""

    def __init__(self, hub: Hub, cp_degrees: Sequence[int]) -> None:
        self._hub = hub
        self._cp_degrees = cp_degrees
        self._waiting: dict[int, _Waiter] = {}

    def report(self, command: ControlCommand) -> None:
        if isinstance(command, Converted) and command.operation in self._waiting:
            waiter = self._waiting[command.operation]
            waiter.converted = command
            waiter.ended.set()

    def plan(self, kind: str, workers: Sequence[str]) -> list[dict[str, Any]]:
        return [msgspec.to_builtins(self._plan(event)) for event in self._events(kind, workers)]

    async def convert(self, kind: str, workers: Sequence[str]) -> list[dict[str, Any]]:
        events = self._events(kind, workers)
        for event in events:
            self._plan(event)
        commands = [command for event in events for command in self._hub.command(event)]
        begun = {c.operation: _Waiter() for c in commands if isinstance(c, Converting)}
        self._waiting |= begun
        try:
            for waiter in begun.values():
                await waiter.ended.wait()
        finally:
            for operation in begun:
                del self._waiting[operation]
        return [msgspec.to_builtins(waiter.converted) for waiter in begun.values()]

    def _plan(self, event: Split | Merge) -> Converting:
        try:
            return self._hub.plan(event)
        except IllegalEvent as error:
            raise RequestError(409, "not_possible", str(error)) from error

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

    def _find(self, names: Sequence[str]) -> list[Worker]:
        """Raises :class:`RequestError` naming the workers there are."""
        if not names:
            raise invalid("name at least one worker", "workers")
        workers = {
            worker["name"]: Worker(worker["degree"], worker["ranks"][0])
            for worker in self._hub.snapshot()["workers"]
        }
        for name in names:
            if name not in workers:
                raise _unknown(name, workers)
        return [workers[name] for name in dict.fromkeys(names)]


def _not_possible(reason: str) -> RequestError:
    return RequestError(409, "not_possible", reason)


def _unknown(name: str, workers: Iterable[str]) -> RequestError:
    return RequestError(
        404, "unknown_worker", f"there is no worker '{name[:50]}'; there are {' '.join(workers)}"
    )
