"""Fetches: a worker that lacks a request's prefix gets it from a home that has it.

``placement.py`` prices it. The copy begins when the request is placed, and overlaps its wait; the
request is dispatched once the copy is there or has failed, and computes what it then lacks.

    placed ── J is least with a longer prefix ──► FETCHING ── published, failed or late ──► WAITING
                                                     │
                    cancelled, redirected, lost ◄────┘   the last one to leave cancels the copy

Requests that want the same prefix at the same home wait for one copy. A chain that lay on several
homes of a worker is pending once that is split: it comes to all homes of the request's worker, or
to one that can hold the request, and only the blocks that are missing there move.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vertumnusd.control.copies import FETCH, Copies, Copy
from vertumnusd.control.fleet import Fleet, Worker
from vertumnusd.control.homes import Span
from vertumnusd.control.ledger import Ledger
from vertumnusd.control.matching import SMALL_PART, Matching
from vertumnusd.control.placement import Longer
from vertumnusd.control.prefix_trie import bits
from vertumnusd.control.request import Request
from vertumnusd.control.settings import Settings
from vertumnusd.control.stage import Stage
from vertumnusd.messages import HASH_BYTES, CancelTransfer, ControlCommand, Replicate


class Wanted(NamedTuple):
    """The longest prefix of a request that is anywhere, and the homes (a bit for each) with it.

    Or the first home of the span of ``ranks`` ranks on which it lies.
    """

    chain: bytes
    homes: int
    ranks: int = 0


class Fetching:
    """Who waits for which copy."""

    def __init__(
        self, settings: Settings, fleet: Fleet, ledger: Ledger, matching: Matching, copies: Copies
    ) -> None:
        self._settings = settings.fetch
        self._enabled = settings.does("fetch") and settings.fetch.token_s > 0
        self._home_ranks = settings.home_ranks
        self._home_blocks = settings.home_blocks
        self._block_tokens = settings.block_tokens
        self._fleet = fleet
        self._ledger = ledger
        self._matching = matching
        self._copies = copies
        self._waiting: dict[int, list[Request]] = {}  # by copy

    def wanted(self, request: Request) -> Wanted | None:
        """None if there is nothing that could be fetched."""
        if not self._enabled:
            return None
        held = self._matching.held(request)
        homes, blocks = held[-1] if held else (0, 0)
        ranks, on_span = 0, self._matching.longest_on_span(request)
        if on_span is not None and on_span[0] > blocks:
            blocks, span = on_span
            homes, ranks = 1 << span.base, span.ranks
        if blocks * self._block_tokens * SMALL_PART < max(1, request.input_tokens):
            return None  # it would not decide in which home the chain comes to lie
        return Wanted(request.submit.chain[: blocks * HASH_BYTES], homes, ranks)

    def price(self, wanted: Wanted) -> Longer:
        """What J has to know of it."""
        tokens = len(wanted.chain) // HASH_BYTES * self._block_tokens
        return Longer(tokens, self._settings.token_s, self._settings.latency_s)

    def fetch(
        self, now: float, request: Request, wanted: Wanted, worker: Worker
    ) -> tuple[int, list[Replicate]] | None:
        """The number of the copy to wait for, one under way or a new one.

        None if the worker's homes have no room for it, or too many are under way.
        """
        spans = self._spans(request, worker)
        number = self._under_way(wanted, spans)
        commands: list[Replicate] = []
        if number is None:
            copy = self._plan(request, wanted, worker, spans)
            if copy is None or len(self._waiting) >= self._settings.max_running:
                return None
            term, deadline_s = self._fleet.term, self._settings.deadline_s
            commands = [self._copies.begin(now, term, FETCH, copy, deadline_s)]
            number = commands[0].transfer
            self._waiting[number] = []
        self._waiting[number].append(request)
        return number, commands

    def settle(self) -> list[ControlCommand]:
        """Let those go on whose copies are over; cancel copies that nobody waits for any more."""
        commands: list[ControlCommand] = []
        if not self._waiting:
            return commands
        for number, requests in list(self._waiting.items()):
            here = [request for request in requests if self._waits(request, number)]
            if here and number in self._copies:
                self._waiting[number] = here
                continue
            del self._waiting[number]
            for request in here:
                self._ledger.fetched(request)
            if number in self._copies:
                commands.append(CancelTransfer(self._fleet.term, number))
        return commands

    def _waits(self, request: Request, number: int) -> bool:
        known = self._ledger.requests.get(request.name) is request
        return known and request.stage is Stage.FETCHING and request.fetch == number

    def _spans(self, request: Request, worker: Worker) -> list[Span]:
        """Where the request's chain can lie on this worker: one home, or all if none can hold it.

        As in ``Copy``, the ranks of a home are not told.
        """
        if request.blocks > self._home_blocks:
            return [Span(worker.base, worker.degree)]
        return [Span(home, 0) for home in worker.homes(self._home_ranks)]

    def _under_way(self, wanted: Wanted, spans: Sequence[Span]) -> int | None:
        for number in self._waiting:
            if number in self._copies:
                copy = self._copies[number]
                there = Span(copy.destination, copy.destination_ranks)
                if there in spans and copy.chain.startswith(wanted.chain):
                    return number
        return None

    def _plan(
        self, request: Request, wanted: Wanted, worker: Worker, spans: Sequence[Span]
    ) -> Copy | None:
        """To the home with most of it, of equals to the emptiest; from where the load is least.

        A source need not serve: ranks send what they have while their worker drains or converts.
        """
        there = self._matching.by_home(request, worker.homes(self._home_ranks))
        total, homes = len(wanted.chain) // HASH_BYTES, self._ledger.homes
        places = []
        for span in spans:
            alone = span.ranks == 0
            cached = there.get(span.base, 0) if alone else self._matching.on_span(request, span)
            first_block = cached // self._block_tokens
            missing = total - first_block
            if missing and homes.fits(span.base, missing, span.ranks):
                places.append((-first_block, homes.fullness(*span), span))
        if not places:
            return None
        negative, _, to = min(places)
        source = min(bits(wanted.homes), key=lambda home: (self._load_s(home), home))
        return Copy(wanted.chain, -negative, source, to.base, wanted.ranks, to.ranks)

    def _load_s(self, home: int) -> float:
        return self._ledger.load_s(self._fleet.worker_of(home))
