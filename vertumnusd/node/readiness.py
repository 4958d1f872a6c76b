"""Whether the node takes work, and if not, why: what ``/health`` and refusals say.

    loading ──all ranks ready, all workers exposed──► serving ──signal──► draining

While it serves it still may have no worker, or no decode rank, for a time.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from vertumnusd.messages import Exposed, RankDown, RankUp, Withdrawn


class Readiness:
    def __init__(self, workers: int, takes_work: Callable[[], bool]) -> None:
        """``workers``: of the composition at start; ``takes_work``: whether one of them does."""
        self.loading = "starting"  # what is going on at the start, for people
        self.served = False  # from the end of the start on
        self.draining = False
        self.all_exposed = trio.Event()
        self._workers = workers
        self._takes_work = takes_work
        self._exposed: set[str] = set()
        self._decode_ranks: set[int] = set()  # that are up

    def happened(self, event: Exposed | Withdrawn | RankUp | RankDown) -> None:
        match event:
            case Exposed():
                self._exposed.add(event.worker)
                if len(self._exposed) == self._workers:
                    self.all_exposed.set()
            case Withdrawn():
                self._exposed.discard(event.worker)
            case RankUp(kind="decode"):
                self._decode_ranks.add(event.rank)
            case RankDown(kind="decode"):
                self._decode_ranks.difference_update((event.rank, *event.also))

    def reason(self) -> str:
        """Why no work is taken; empty if it is."""
        if self.draining:
            return "draining"
        if not self.served:
            return self.loading
        if not self._takes_work():
            return "no worker serves"
        return "" if self._decode_ranks else "no decode rank serves"
