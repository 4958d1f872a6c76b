"""The controller's decisions as one state machine: ``step(now, event) → commands``.

    events ──► ranks: who is up ──► Fleet ──── a worker serves, or not ────┐
          │                          ▲                                     ▼
          ├──► splits and merges ──► Operations ─── drain, resume ──► Scheduler ──► commands
          └──► requests, reports of blocks ──────────────────────────►─┘

``fleet.py`` says which workers serve, ``scheduler.py`` which request runs where, ``reconfig.py``
leads splits and merges through their phases, ``adaptation.py`` begins them, ``drains.py`` takes
workers out of service by hand, ``replication.py`` copies and deletes prefixes. The loss of a
rank ends every attempt that still needed it (``Lost``: its gateway submits it again, as the next
attempt) and moves what waited to other workers.

Events may repeat or come late: about an unknown request, an older attempt or an epoch long gone
they are ignored on purpose. An event that cannot follow from what happened before raises
``IllegalEvent`` and changes nothing.
"""

from __future__ import annotations

from typing import Any

from vertumnusd.control.adaptation import Adaptation
from vertumnusd.control.drains import Drains
from vertumnusd.control.errors import IllegalEvent
from vertumnusd.control.fleet import Fleet, Worker
from vertumnusd.control.holding import Holding
from vertumnusd.control.prefill_time import PrefillTime
from vertumnusd.control.prefix_audit import RankAudit
from vertumnusd.control.reconfig import Operations
from vertumnusd.control.replication import Replication
from vertumnusd.control.scheduler import Scheduler
from vertumnusd.control.settings import Settings
from vertumnusd.control.snapshot import snapshot
from vertumnusd.messages import (
    Adopted,
    AskBlocks,
    BlocksChanged,
    BlocksHeld,
    Cancel,
    ControlCommand,
    ControlEvent,
    Converting,
    Done,
    Drain,
    Drained,
    HandedOff,
    Hold,
    Merge,
    Parked,
    Placed,
    PrefillDone,
    RankDown,
    RankUp,
    Reclaim,
    ReclaimPrefix,
    Replicated,
    Returned,
    RoomMissing,
    Seated,
    Split,
    Submit,
    TransferFailed,
    Undrain,
)

__all__ = ["Controller", "IllegalEvent", "Settings"]


class Controller:
    """Sits for one term. Feed it events, and call ``tick`` when ``next_deadline`` has come."""

    def __init__(self, settings: Settings, prefill_time: PrefillTime) -> None:
        self._settings = settings
        self._fleet = Fleet(settings.workers())
        self._scheduler = Scheduler(settings, prefill_time, self._fleet)
        self._operations = Operations(settings, self._fleet, self._scheduler)
        patience_s = settings.reconfiguration.patience_s
        self._drains = Drains(patience_s, self._fleet, self._scheduler)
        self._holding = Holding()
        self._adaptation = Adaptation(
            settings,
            prefill_time,
            self._fleet,
            self._scheduler,
            self._operations,
            self._holding,
        )
        self._replication = Replication(settings, self._fleet, self._scheduler, self._holding)
        self._parts = (
            *(self._holding, self._operations, self._scheduler),
            *(self._adaptation, self._replication),
        )
        prefill, everyone = settings.ranks, settings.ranks + settings.decode_ranks
        self._ranks_of = {"prefill": range(prefill), "decode": range(prefill, everyone)}
        self._incarnations: dict[int, int] = {}  # of the ranks that are up, of both kinds

    def step(self, now: float, event: ControlEvent) -> list[ControlCommand]:
        """Let ``event`` happen at ``now``. Raises IllegalEvent, and then nothing happened."""
        commands = self._handle(now, event)
        if self._operations.under_way:
            commands += self._operations.advance(now)
        commands += self._drains.advance(now)
        commands += self._scheduler.dispatch(now)
        return commands

    def tick(self, now: float) -> list[ControlCommand]:
        """Let time pass: call off what takes too long, refuse what waited too long, adapt."""
        commands = [command for part in self._parts for command in part.tick(now)]
        return [*commands, *self._scheduler.dispatch(now)]

    def plan(self, now: float, event: Split | Merge) -> Converting:
        """What the event would begin. Raises IllegalEvent if it can not."""
        return self._operations.plan(now, self._operations.change(event))

    def reclaims(self, start: bytes) -> dict[bytes, list[Reclaim]]:
        """Of each prefix whose name begins so, what would be deleted, and where."""
        return {
            block: self._replication.reclaims(block) for block in self._replication.named(start)
        }

    def next_deadline(self) -> float | None:
        """Asked between any two events."""
        soonest: float | None = None
        for part in self._parts:
            deadline = part.next_deadline()
            if deadline is not None and (soonest is None or deadline < soonest):
                soonest = deadline
        return soonest

    def idle(self) -> bool:
        """Whether everything is back to its base line: nothing queued, reserved or pinned by us."""
        return not self._operations.under_way and self._scheduler.at_rest()

    def hear(self, audit: RankAudit, part: BlocksHeld) -> None:
        """Compare what a rank says of itself with what is believed of it."""
        audit.hear(self._scheduler.matching.trie, part)

    def takes_work(self) -> bool:
        """Whether a worker serves, or will in a moment."""
        return bool(self._fleet.serving() or self._operations.under_way)

    def snapshot(self, now: float) -> dict[str, Any]:
        """What there is to see, ready for JSON."""
        view = snapshot(now, self._settings, self._fleet, self._scheduler, self._operations)
        view["drains"] = self._drains.snapshot()
        return {**view, **self._replication.snapshot(now), **self._adaptation.snapshot(now)}

    def _handle(self, now: float, event: ControlEvent) -> list[ControlCommand]:
        match event:
            case Submit():
                return self._submit(now, event)
            case BlocksChanged() | BlocksHeld():
                return self._on_blocks(event)
            case PrefillDone():
                self._scheduler.prefill_done(now, event)
            case HandedOff():
                self._scheduler.handed_off(event)
            case Done():
                self._scheduler.done(event)
            case Cancel():
                return self._scheduler.cancel(event)
            case RoomMissing():
                return self._scheduler.room_missing(now, event)
            case Returned():
                return self._scheduler.returned(now, event)
            case Seated():
                self._adaptation.seat(now)
                self._replication.seat(now)
                return [*self._fleet.seat(event.term)]
            case RankUp():
                return self._on_rank_up(now, event)
            case RankDown():
                return self._on_rank_down(now, event)
            case Adopted():
                return self._on_adopted(now, event)
            case Drained():
                self._operations.drained(event)
                self._drains.drained(event)
            case Parked():
                self._check_rank(event.rank, "prefill")
                return self._operations.parked(now, event)
            case Split() | Merge():
                return self._operations.begin(now, *self._operations.change(event))
            case Drain():
                return self._drains.drain(now, Worker(event.degree, event.base))
            case Undrain():
                return self._drains.undrain(now, Worker(event.degree, event.base))
            case Hold():
                return self._holding.hold(now, event)
            case ReclaimPrefix():
                return self._replication.reclaim(event)
            case Replicated() | TransferFailed():
                self._scheduler.copies.ended(event.transfer)
        return []

    def _submit(self, now: float, submit: Submit) -> list[ControlCommand]:
        """What is placed is demand; what is placed again was counted before."""
        commands = self._scheduler.submit(now, submit)
        for command in commands:
            if isinstance(command, Placed) and submit.attempt == 0:
                self._adaptation.arrive(now, command)
        return commands

    # --- ranks

    def _on_rank_up(self, now: float, event: RankUp) -> list[ControlCommand]:
        """A rank can be used. If it was up already, as another process, that one is lost."""
        self._check_rank(event.rank, event.kind)
        if self._incarnations.get(event.rank) == event.incarnation:
            return []
        commands: list[ControlCommand] = []
        if event.rank in self._incarnations:
            commands += self._lose(now, [event.rank], "the rank was restarted")
        self._incarnations[event.rank] = event.incarnation
        if event.kind == "decode":
            self._scheduler.decode_rank_up(event.rank)
            return commands
        return [*commands, *self._fleet.rank_up(event.rank)]

    def _on_rank_down(self, now: float, event: RankDown) -> list[ControlCommand]:
        ranks = {event.rank, *event.also}
        for rank in ranks:
            self._check_rank(rank, event.kind)
        down = sorted(rank for rank in ranks if rank in self._incarnations)
        return self._lose(now, down, event.reason)

    def _lose(self, now: float, ranks: list[int], reason: str) -> list[ControlCommand]:
        """All of them are gone before anything is placed anew, so that nothing goes to one."""
        commands: list[ControlCommand] = []
        workers = []
        for rank in ranks:
            del self._incarnations[rank]
            if rank >= self._settings.ranks:
                commands += self._scheduler.decode_rank_down(now, rank, reason)
                continue
            self._scheduler.drop_rank(rank)
            withdrawn = self._fleet.rank_down(rank, reason)
            if withdrawn:
                workers.append(self._fleet.worker_of(rank))
            commands += withdrawn
        self._scheduler.copies.lose(ranks)
        commands += self._scheduler.withdraw(now, workers, reason)
        return [*commands, *self._operations.lose(now, ranks, reason)]

    def _on_adopted(self, now: float, event: Adopted) -> list[ControlCommand]:
        self._check_rank(event.rank, "prefill")
        exposed = self._fleet.adopted(event)
        if not exposed:
            return []
        workers = [Worker(each.degree, each.base) for each in exposed]
        commands = [*exposed, *self._operations.exposed(now, workers)]
        commands += self._scheduler.expose(now, workers)
        return [*commands, *self._drains.exposed(now, workers)]

    def _on_blocks(self, event: BlocksChanged | BlocksHeld) -> list[ControlCommand]:
        """A report of a rank that is down is late: what it held is gone."""
        self._check_rank(event.rank, "prefill")
        if event.rank not in self._incarnations:
            return []
        if isinstance(event, BlocksHeld):
            self._scheduler.blocks_held(event)
            return []
        missing = self._scheduler.blocks_changed(event)
        return [AskBlocks(self._fleet.term, event.rank)] if missing > 0 else []

    def _check_rank(self, rank: int, kind: str) -> None:
        if rank not in self._ranks_of.get(kind, ()):
            raise IllegalEvent(f"there is no {kind} rank {rank}")
