"""Keep on compute: on which further homes of a merged worker the chain of a request is kept.

Every rank of a worker has the KV at hand while it is computed, so a prefix that others want, too,
can be kept on all homes of the worker for the price of the room. *Hot*, by the first mark that will
be computed (``promised.py``), is what was reused more than θ_intra times for each of its replicas,
as in Algorithm 2, at all degrees together; or what two workers at least have been asked for and
have not computed yet. Only homes that hold what is cached are eligible, and only as far as nothing
that they have must be evicted for it. Policy "paper" keeps every chain once.
"""

from __future__ import annotations

from typing import Final

from vertumnusd.control.fleet import Worker
from vertumnusd.control.homes import Homes, Span
from vertumnusd.control.matching import Matching
from vertumnusd.control.prefix_nodes import PrefixNodes
from vertumnusd.control.promised import Promised
from vertumnusd.control.request import Request
from vertumnusd.control.settings import Settings

WANTED_BY: Final = 2  # workers


class Keeping:
    def __init__(
        self, settings: Settings, homes: Homes, promised: Promised, matching: Matching
    ) -> None:
        self._enabled = settings.policy == "ours" and settings.replication.enabled
        self._intra_accesses = settings.replication.intra_accesses
        self._home_ranks = settings.home_ranks
        self._home_blocks = settings.home_blocks
        self._block_tokens = settings.block_tokens
        self._homes = homes
        self._promised = promised
        self._matching = matching
        self._nodes = PrefixNodes(matching.trie, settings.home_ranks)

    def homes(
        self, request: Request, worker: Worker, span: Span, cached_tokens: int
    ) -> tuple[int, ...]:
        """Besides ``span``, where the chain lies with so much of it cached."""
        if not self._enabled or span.ranks != self._home_ranks:
            return ()
        others = [home for home in worker.homes(self._home_ranks) if home != span.base]
        if not others or not self._is_hot(request, cached_tokens):
            return ()
        there = self._matching.by_home(request, others)
        fresh_blocks = request.blocks - cached_tokens // self._block_tokens
        return tuple(
            home
            for home in others
            if there.get(home, 0) >= cached_tokens and self._has_room(home, fresh_blocks)
        )

    def _is_hot(self, request: Request, cached_tokens: int) -> bool:
        statistics = self._matching.statistics
        first = cached_tokens // (statistics.stride * self._block_tokens)
        if first >= len(request.marks):
            return False
        mark = request.marks[first]
        if self._promised.workers(mark).bit_count() >= WANTED_BY:
            return True
        accesses = sum([access[mark] for access in statistics.access.values()])
        if accesses <= self._intra_accesses:
            return False  # whatever the number of replicas
        replicas = max(1, self._nodes.holders(mark).bit_count())
        return accesses > replicas * self._intra_accesses

    def _has_room(self, home: int, blocks: int) -> bool:
        fits = self._homes.fits(home, blocks)
        return fits and self._homes.fullness(home) + blocks <= self._home_blocks
