"""Copies of prefixes between ranks: what the controller ordered, as messages to the ranks.

    queued ──► gathering ──► installing ──► publishing ──► Replicated
       │           └──────┬──────┘              │
       │                  ▼                     │ a rank of the destination is lost
       │              releasing                 ▼
       └──────────────────┴──────────────► TransferFailed

* Gathering: the source's ranks pin what they hold of the chain, those of the destination pin what
  they hold and set room aside for the rest. Every missing block must then have a source.
* Installing: each rank of the destination copies its missing blocks, straight from where they are.
* Publishing: all have installed, and only now their blocks get names. The source is free again.
* Releasing: a refusal, a block that is nowhere, a loss, a cancel or the deadline has ended the
  transfer. The source stays pinned until every rank of the destination that lives has said that it
  writes no more; what it wrote never gets a name.

A copy that a request waits for is begun before the others, and runs without their limit. Pure:
events in, commands out.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from vertumnusd.control.lead_run import SendRank
from vertumnusd.messages import (
    CopyRefused,
    CopyReleased,
    CopyReserved,
    DeleteBlocks,
    Install,
    Installed,
    Pin,
    Pinned,
    Publish,
    Published,
    Reclaim,
    ReleaseCopy,
    Replicate,
    Replicated,
    ReserveCopy,
    ToRank,
    TransferFailed,
    Unpin,
)


class Phase(enum.Enum):
    QUEUED = "queued"
    GATHERING = "gathering"
    INSTALLING = "installing"
    PUBLISHING = "publishing"
    RELEASING = "releasing"


TransferEvent = Pinned | CopyReserved | CopyRefused | Installed | Published | CopyReleased
TransferCommand = SendRank | Replicated | TransferFailed


@dataclass(frozen=True, slots=True)
class TransferLimits:
    """Each for the copies that nobody waits for; as many awaited ones may run besides.

    At the default rate a rank's copies take less than 2 % of a core (``benchmarks/transfer.py``).
    """

    max_running: int = 4
    bytes_per_s: float = 30e6  # of one rank


@dataclass(slots=True)
class _Transfer:
    command: Replicate
    deadline: float
    phase: Phase = Phase.QUEUED
    waiting: set[tuple[type[TransferEvent], int]] = field(default_factory=set)  # answers, by rank
    found: dict[int, tuple[int, int]] = field(default_factory=dict)  # block → rank, id at a source
    missing: dict[int, bytes] = field(default_factory=dict)  # by rank of the destination
    lost: set[int] = field(default_factory=set)
    reason: str = ""
    kv_bytes: int = 0

    @property
    def source(self) -> range:
        first = self.command.source_home
        return range(first, first + self.command.source_ranks)

    @property
    def destination(self) -> range:
        first = self.command.destination_home
        return range(first, first + self.command.destination_ranks)

    @property
    def awaited(self) -> bool:
        return self.command.kind == "fetch"

    def send(self, ranks: Iterable[int], message: ToRank) -> list[TransferCommand]:
        """To those that live."""
        return [SendRank(rank, message) for rank in ranks if rank not in self.lost]

    def wait_for(self, kind: type[TransferEvent], ranks: Iterable[int]) -> None:
        self.waiting |= {(kind, rank) for rank in ranks if rank not in self.lost}


class Transfers:
    """All transfers of a node. Feed it with ``start``, ``cancel``, ``step``, ``lose``, ``tick``."""

    def __init__(self, limits: TransferLimits) -> None:
        self._limits = limits
        self._transfers: dict[tuple[int, int], _Transfer] = {}  # in order of their starts

    def start(self, now: float, command: Replicate) -> list[TransferCommand]:
        """Take a transfer on; a repeated order is ignored."""
        name = (command.term, command.transfer)
        if name in self._transfers:
            return []
        self._transfers[name] = _Transfer(command, now + command.deadline_s)
        return self._begin_more()

    def cancel(self, term: int, transfer: int) -> list[TransferCommand]:
        """Nobody wants it any more. What is being published will be."""
        known = self._transfers.get((term, transfer))
        return [] if known is None else [*self._fail(known, "cancelled"), *self._begin_more()]

    def step(self, event: TransferEvent) -> list[TransferCommand]:
        """A rank answered. What nobody waits for is late, and ignored."""
        transfer = self._transfers.get((event.term, event.transfer))
        expected = CopyReserved if isinstance(event, CopyRefused) else type(event)
        if transfer is None or (expected, event.rank) not in transfer.waiting:
            return []
        transfer.waiting.remove((expected, event.rank))
        match event:
            case Pinned():
                places = zip(array("I", event.blocks), array("I", event.block_ids), strict=True)
                transfer.found |= {block: (event.rank, block_id) for block, block_id in places}
            case CopyReserved():
                transfer.missing[event.rank] = event.missing
            case CopyRefused():
                reason = f"rank {event.rank} has room for {event.free_blocks} blocks"
                commands = self._fail(transfer, f"{reason} of {event.needed_blocks}")
                return [*commands, *self._begin_more()]
            case Installed():
                transfer.kv_bytes += event.kv_bytes
        return [] if transfer.waiting else [*self._advance(transfer), *self._begin_more()]

    def lose(self, ranks: Iterable[int]) -> list[TransferCommand]:
        """These ranks' processes are gone, with all that they had pinned, reserved or written."""
        gone = set(ranks)
        commands: list[TransferCommand] = []
        for transfer in list(self._transfers.values()):
            commands += self._lose(transfer, gone)
        return [*commands, *self._begin_more()]

    def tick(self, now: float) -> list[TransferCommand]:
        commands: list[TransferCommand] = []
        for transfer in list(self._transfers.values()):
            if transfer.deadline <= now:
                deadline_s = transfer.command.deadline_s
                commands += self._fail(transfer, f"not done within {deadline_s:g} s")
        return [*commands, *self._begin_more()]

    def idle(self) -> bool:
        return not self._transfers

    def snapshot(self) -> dict[int, dict[str, Any]]:
        """What there is to see of each, by number; ``kv_bytes`` from the ranks that are done."""
        return {
            transfer.command.transfer: {
                "kind": transfer.command.kind,
                "phase": transfer.phase.value,
                "source_ranks": list(transfer.source),
                "destination_ranks": list(transfer.destination),
                "kv_bytes": transfer.kv_bytes,
            }
            for transfer in self._transfers.values()
        }

    # --- the phases

    def _begin_more(self) -> list[TransferCommand]:
        """Begin what the limits let, awaited copies first."""
        commands: list[TransferCommand] = []
        for awaited in (True, False):
            of_kind = [t for t in self._transfers.values() if t.awaited == awaited]
            queued = [t for t in of_kind if t.phase is Phase.QUEUED]
            running = len(of_kind) - len(queued)
            for transfer in queued[: max(0, self._limits.max_running - running)]:
                commands += self._gather(transfer)
        return commands

    def _gather(self, transfer: _Transfer) -> list[TransferCommand]:
        transfer.phase = Phase.GATHERING
        transfer.wait_for(Pinned, transfer.source)
        transfer.wait_for(CopyReserved, transfer.destination)
        command = transfer.command
        name = (command.term, command.transfer, command.chain)
        reserve = ReserveCopy(*name, command.destination_home, command.destination_ranks)
        return [
            *transfer.send(transfer.source, Pin(*name)),
            *transfer.send(transfer.destination, reserve),
        ]

    def _advance(self, transfer: _Transfer) -> list[TransferCommand]:
        """All ranks have answered."""
        name = (transfer.command.term, transfer.command.transfer)
        match transfer.phase:
            case Phase.GATHERING:
                return self._install(transfer)
            case Phase.INSTALLING:
                transfer.phase = Phase.PUBLISHING
                transfer.wait_for(Published, transfer.destination)
                return [
                    *transfer.send(transfer.source, Unpin(*name)),
                    *transfer.send(transfer.destination, Publish(*name)),
                ]
            case Phase.PUBLISHING if not transfer.reason:
                del self._transfers[name]
                return [Replicated(transfer.command.transfer)]
            case Phase.PUBLISHING:
                del self._transfers[name]
                return [TransferFailed(transfer.command.transfer, transfer.reason)]
            case _:
                del self._transfers[name]
                failed = TransferFailed(transfer.command.transfer, transfer.reason)
                return [*transfer.send(transfer.source, Unpin(*name)), failed]

    def _install(self, transfer: _Transfer) -> list[TransferCommand]:
        """Tell each rank of the destination where to find the blocks that it lacks."""
        needed = {block for missing in transfer.missing.values() for block in array("I", missing)}
        if nowhere := needed - transfer.found.keys():
            return self._fail(transfer, f"block {min(nowhere)} is not at the source any more")
        transfer.phase = Phase.INSTALLING
        transfer.wait_for(Installed, transfer.destination)
        bytes_per_s = 0.0 if transfer.awaited else self._limits.bytes_per_s
        commands: list[TransferCommand] = []
        for rank, missing in transfer.missing.items():
            found = [transfer.found[block] for block in array("I", missing)]
            message = Install(
                transfer.command.term,
                transfer.command.transfer,
                missing,
                array("I", (source for source, _ in found)).tobytes(),
                array("I", (block_id for _, block_id in found)).tobytes(),
                bytes_per_s,
            )
            commands += transfer.send([rank], message)
        return commands

    # --- ends

    def _fail(self, transfer: _Transfer, reason: str) -> list[TransferCommand]:
        """End it, unless it ends already."""
        if transfer.phase in (Phase.PUBLISHING, Phase.RELEASING):
            return []
        transfer.reason = reason
        name = (transfer.command.term, transfer.command.transfer)
        if transfer.phase is Phase.QUEUED:
            del self._transfers[name]
            return [TransferFailed(transfer.command.transfer, reason)]
        transfer.phase = Phase.RELEASING
        transfer.waiting.clear()
        transfer.wait_for(CopyReleased, transfer.destination)
        commands = transfer.send(transfer.destination, ReleaseCopy(*name))
        return commands or self._advance(transfer)

    def _lose(self, transfer: _Transfer, gone: set[int]) -> list[TransferCommand]:
        lost = gone.intersection({*transfer.source, *transfer.destination})
        if not lost:
            return []
        transfer.lost |= lost
        transfer.waiting = {(kind, rank) for kind, rank in transfer.waiting if rank not in gone}
        reason = f"rank {min(lost)} was lost"
        if transfer.phase is Phase.PUBLISHING:
            if lost.intersection(transfer.destination):
                transfer.reason = transfer.reason or reason
        elif transfer.phase is not Phase.RELEASING:
            return self._fail(transfer, reason)
        return [] if transfer.waiting else self._advance(transfer)


def delete(command: Reclaim) -> list[SendRank]:
    """What the ranks of a home are told to reclaim."""
    return [
        SendRank(rank, DeleteBlocks(command.term, command.blocks, version))
        for rank, version in enumerate(command.versions, command.home)
    ]
