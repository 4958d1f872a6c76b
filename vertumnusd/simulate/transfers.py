"""Copies of KV between homes, and deletions, as the controller orders them.

A copy takes its bytes over the link of its homes, one after another on each. It is installed at
once when it is over: the destination's ranks report, then ``Replicated`` follows. If the source has
lost a block of it by then, or the destination one it builds on, nothing is installed; nor if it is
cancelled meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vertumnusd.messages import (
    HASH_BYTES,
    CancelTransfer,
    ControlEvent,
    Reclaim,
    Replicate,
    Replicated,
    TransferFailed,
)
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.outcome import Outcome
from vertumnusd.simulate.ranks import VirtualHome


class Transfers:
    def __init__(
        self,
        homes: Mapping[int, VirtualHome],
        span: Callable[[int, int], VirtualHome],
        conditions: Conditions,
        after: Callable[[float, Callable[[], None]], None],
        step: Callable[[ControlEvent], None],
    ) -> None:
        """``span``: the ranks from one on as the place of a chain. ``after`` lets something happen
        later, ``step`` tells the controller."""
        self._homes = homes
        self._span = span
        self._conditions = conditions
        self._after = after
        self._step = step
        self._link_free_at = dict.fromkeys(homes, 0.0)
        self._moved_bytes = 0
        self._copies = 0
        self._reclaims = 0
        self._cancelled: set[int] = set()

    def replicate(self, now: float, command: Replicate) -> None:
        blocks = len(command.chain) // HASH_BYTES - command.first_block
        moved_bytes = blocks * self._conditions.block_bytes
        ends = (command.source_home, command.destination_home)
        begins = max(now, *(self._link_free_at[home] for home in ends))
        over = begins + moved_bytes / self._conditions.link_bytes_s
        for home in ends:
            self._link_free_at[home] = over
        self._moved_bytes += moved_bytes
        self._copies += 1
        self._after(over - now, lambda: self._install(command))

    def cancel(self, command: CancelTransfer) -> None:
        """It holds the link until it would have been over."""
        self._cancelled.add(command.transfer)

    def reclaim(self, command: Reclaim) -> None:
        self._reclaims += 1
        home, blocks = self._homes[command.home], split(command.blocks)
        self._after(0.0, lambda: self._tell(*home.reclaim(blocks)))

    def count(self, outcome: Outcome) -> None:
        """Add what was moved and deleted to the outcome of a run."""
        outcome.moved_bytes += self._moved_bytes
        outcome.transfers += self._copies
        outcome.reclaims += self._reclaims

    def _install(self, command: Replicate) -> None:
        if command.transfer in self._cancelled:
            self._cancelled.discard(command.transfer)
            self._step(TransferFailed(command.transfer, "cancelled"))
            return
        chain = split(command.chain)
        source = self._span(command.source_home, command.source_ranks)
        destination = self._span(command.destination_home, command.destination_ranks)
        whole = source.leading(chain) == len(chain)
        if not whole or destination.leading(chain) < command.first_block:
            self._step(TransferFailed(command.transfer, "a block was evicted"))
            return
        self._tell(*destination.use(chain))
        self._step(Replicated(command.transfer))

    def _tell(self, *reports: ControlEvent) -> None:
        for report in reports:
            self._step(report)


def split(chain: bytes) -> list[bytes]:
    return [chain[n : n + HASH_BYTES] for n in range(0, len(chain), HASH_BYTES)]
