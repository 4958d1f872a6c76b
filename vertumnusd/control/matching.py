"""How much of a request's input each home and worker has, or is about to have, in tokens.

A worker's match is the longest among its homes (``prefix_trie.py``); under policy "ours" also what
its queued and running requests will have produced (``promised.py``). At least one token is always
left to compute, so only blocks that end before the last token count.
"""

from __future__ import annotations

from vertumnusd.control.fleet import Fleet, Worker
from vertumnusd.control.prefill_time import PrefillTime
from vertumnusd.control.prefix_statistics import PrefixStatistics
from vertumnusd.control.prefix_trie import PrefixTrie
from vertumnusd.control.promised import Promised, common_blocks
from vertumnusd.control.request import Request
from vertumnusd.control.settings import Settings
from vertumnusd.messages import HASH_BYTES


class Matching:
    """The trie and what is promised, seen from a request; and Algorithm 1's view of a dispatch."""

    def __init__(
        self, settings: Settings, prefill_time: PrefillTime, fleet: Fleet, promised: Promised
    ) -> None:
        self.trie = PrefixTrie(settings.ranks, settings.home_ranks)
        self.statistics = PrefixStatistics(settings, prefill_time)
        self._settings = settings
        self._fleet = fleet
        self._promised = promised

    def by_home(self, request: Request) -> dict[int, int]:
        """What is cached; homes without any of it are left out."""
        block_tokens = self._settings.block_tokens
        matched = self.trie.match(self._usable_chain(request))
        return {home: blocks * block_tokens for home, blocks in matched.items()}

    def prefixes(self, request: Request) -> list[tuple[int, int]]:
        """What is cached or promised: homes (a bit for the first rank of each) and their tokens.

        Longest first; what a worker promises is told of its first home.
        """
        chain, block_tokens = self._usable_chain(request), self._settings.block_tokens
        homes_with = {blocks: homes for homes, blocks in self.trie.prefixes(chain)}
        for worker, blocks in self._promised.match(chain).items():
            homes_with[blocks] = homes_with.get(blocks, 0) | 1 << worker.base
        longest_first = sorted(homes_with.items(), reverse=True)
        return [(homes, blocks * block_tokens) for blocks, homes in longest_first]

    def shared_tokens(self, request: Request, ahead: Request) -> int:
        """What the request will find when the one ahead of it, in the same home, is done."""
        blocks = common_blocks(self._usable_chain(request), ahead.submit.chain)
        return blocks * self._settings.block_tokens

    def observe(self, request: Request, worker: Worker, cached_tokens: int) -> None:
        """Algorithm 1: the path that it reuses, and what it misses where it would rather be."""
        path, preferred = self._usable_chain(request), request.preferred_degree
        reused = cached_tokens // self._settings.block_tokens
        self.statistics.reuse(path[: reused * HASH_BYTES], worker.degree)
        matched = self.trie.match(path)
        there = (n for home, n in matched.items() if self._serves_at(home, preferred))
        longest, at_preferred = max(matched.values(), default=0), max(there, default=0)
        if at_preferred < longest:
            path = path[: longest * HASH_BYTES]
            self.statistics.miss(path, at_preferred, preferred, request.input_tokens)

    def _serves_at(self, home: int, degree: int) -> bool:
        worker = self._fleet.worker_of(home)
        return worker.degree == degree and self._fleet.serves(worker)

    def _usable_chain(self, request: Request) -> bytes:
        usable = (request.input_tokens - 1) // self._settings.block_tokens
        return request.submit.chain[: usable * HASH_BYTES]
