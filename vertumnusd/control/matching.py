"""How much of a request's input each home and worker has, or is about to have, in tokens.

A worker's match is the longest among its homes (``prefix_trie.py``); under policy "ours" also what
its queued and running requests will have produced (``promised.py``). At least one token is always
left to compute, so only blocks that end before the last token count.

A chain that is too long for one home lies on a span of several, all those of its worker. What is
there counts for a worker that contains the whole span, and for no other: after a split it is
pending.
"""

from __future__ import annotations

from collections.abc import Iterable

from vertumnusd.control.fleet import Worker
from vertumnusd.control.homes import Span
from vertumnusd.control.loads import Loads
from vertumnusd.control.prefill_time import PrefillTime
from vertumnusd.control.prefix_statistics import PrefixStatistics
from vertumnusd.control.prefix_trie import PrefixTrie
from vertumnusd.control.promised import Promised, common_blocks
from vertumnusd.control.request import Request
from vertumnusd.control.settings import Settings
from vertumnusd.messages import HASH_BYTES

SMALL_PART = 8  # a prefix of less than an eighth of the input does not decide where a chain lies


class Matching:
    """The trie and what is promised, seen from a request; and Algorithm 1's view of a dispatch."""

    def __init__(
        self, settings: Settings, prefill_time: PrefillTime, loads: Loads, promised: Promised
    ) -> None:
        self.trie = PrefixTrie(settings.ranks, settings.home_ranks)
        self.statistics = PrefixStatistics(settings, prefill_time)
        self._block_tokens = settings.block_tokens
        self._stride = settings.mark_blocks
        self._stride_tokens = self._block_tokens * self._stride
        self._loads = loads
        self._promised = promised
        self._spans: set[Span] = set()  # wider than a home, on which chains lie
        self._last: tuple[Request | None, int, list[tuple[int, int]]] = (None, 0, [])

    def by_home(self, request: Request, homes: Iterable[int]) -> dict[int, int]:
        """What these homes have cached; those without any of it are left out."""
        block_tokens = self._block_tokens
        return {
            home: blocks * block_tokens
            for holders, blocks in self._cached(request)
            for home in homes
            if holders >> home & 1
        }

    def lie_on(self, span: Span) -> None:
        """A chain comes to lie on several homes; from now on others look for their prefix there."""
        self._spans.add(span)

    def by_span(self, request: Request, worker: Worker) -> dict[Span, int]:
        """What is cached on spans of several homes inside this worker."""
        if not self._spans:
            return {}
        chain, block_tokens = self._usable_chain(request), self._block_tokens
        inside = [s for s in self._spans if worker.base <= s.base and s.stop <= worker.ranks.stop]
        return {span: self.trie.span_prefix(chain, *span) * block_tokens for span in inside}

    def on_span(self, request: Request, span: Span) -> int:
        """What is cached on a span of several homes, whoever computes there."""
        chain = self._usable_chain(request)
        return self.trie.span_prefix(chain, *span) * self._block_tokens

    def longest_on_span(self, request: Request) -> tuple[int, Span] | None:
        """Blocks and place of the longest prefix on several homes, pending or not."""
        if not self._spans:
            return None
        chain = self._usable_chain(request)
        found = ((self.trie.span_prefix(chain, *span), span) for span in self._spans)
        return max(found)

    def prefixes(self, request: Request) -> list[tuple[int, int, bool]]:
        """Homes (a bit for the first rank of each), their tokens, and whether these are promised.

        Longest first, of equal ones what is cached; a worker's promise is told of its first home.
        """
        block_tokens = self._block_tokens
        held = self._on_spans(request) if self._spans else self._cached(request)
        shortest_first = [(blocks * block_tokens, True, homes) for homes, blocks in held]
        if self._promised:
            for workers, marks in self._promised.prefixes(self._usable_marks(request)):
                shortest_first.append((marks * self._stride_tokens, False, workers))
        shortest_first.sort()
        return [(homes, tokens, not there) for tokens, there, homes in reversed(shortest_first)]

    def _on_spans(self, request: Request) -> list[tuple[int, int]]:
        """What is cached in homes, and on spans, by the first home of each."""
        homes_with = {blocks: homes for homes, blocks in self._cached(request)}
        for span in self._spans:
            if self._loads.contains(*span):
                blocks = self.trie.span_prefix(self._usable_chain(request), *span)
                homes_with[blocks] = homes_with.get(blocks, 0) | 1 << span.base
        return [(homes, blocks) for blocks, homes in homes_with.items()]

    def shared_tokens(self, request: Request, ahead: Request) -> int:
        """What the request will find when the one ahead of it, in the same home, is done."""
        blocks = common_blocks(self._usable_chain(request), ahead.submit.chain)
        return blocks * self._block_tokens

    def held(self, request: Request) -> list[tuple[int, int]]:
        """What is cached: homes (a bit for the first rank of each) and their blocks, most last."""
        return self._cached(request)

    def observe(self, request: Request, worker: Worker, cached_tokens: int) -> None:
        """Algorithm 1: the path that it reuses, and what it misses where it would rather be."""
        path, preferred = request.marks, request.preferred_degree
        stride = self._stride
        reused = cached_tokens // self._stride_tokens
        self.statistics.reuse(path[:reused], worker.degree)
        cached = self._cached(request)
        longest = cached[-1][1] // stride if cached else 0
        there = [n for homes, n in cached if self._loads.any_with(homes, preferred)]
        at_preferred = there[-1] // stride if there else 0
        if at_preferred < longest:
            tokens = request.input_tokens
            self.statistics.miss(path[:longest], at_preferred, preferred, tokens)

    def _cached(self, request: Request) -> list[tuple[int, int]]:
        """The trie's answer; asked once if a request is placed and dispatched in one step."""
        last, revision, cached = self._last
        if last is not request or revision != self.trie.revision:
            cached = self.trie.prefixes(self._usable_chain(request))
            self._last = (request, self.trie.revision, cached)
        return cached

    def _usable_marks(self, request: Request) -> list[bytes]:
        return request.marks[: (request.input_tokens - 1) // self._stride_tokens]

    def _usable_chain(self, request: Request) -> bytes:
        usable = (request.input_tokens - 1) // self._block_tokens
        return request.submit.chain[: usable * HASH_BYTES]
