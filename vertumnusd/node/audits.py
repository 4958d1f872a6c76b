"""Audits under way: ranks that were asked what they hold, and who waits for the comparison."""

from __future__ import annotations

from collections.abc import Callable

from vertumnusd.control.prefix_audit import RankAudit
from vertumnusd.messages import BlocksHeld

Ended = Callable[[RankAudit], None]


class Audits:
    def __init__(self) -> None:
        self._waiting: list[tuple[RankAudit, Ended]] = []

    def begin(self, rank: int, ended: Ended) -> None:
        """``ended`` is told when the rank has said all, never if it is lost before."""
        self._waiting.append((RankAudit(rank), ended))

    def hear(self, part: BlocksHeld, compare: Callable[[RankAudit, BlocksHeld], None]) -> None:
        """A rank said a part of what it holds."""
        for audit, ended in [entry for entry in self._waiting if entry[0].rank == part.rank]:
            compare(audit, part)
            if audit.differences is not None:
                self._waiting.remove((audit, ended))
                ended(audit)

    def lose(self, rank: int) -> None:
        self._waiting = [entry for entry in self._waiting if entry[0].rank != rank]
