"""Dispatch: what a worker is given when it can take one more.

The first request in line is looked at again: its prefix and predicted time as they are now, room in
a home and on a decode rank. Decode room goes strictly by turn over all workers: otherwise small
requests could overtake a large one for ever.
"""

from __future__ import annotations

from vertumnusd.control.fleet import Fleet, Worker
from vertumnusd.control.homes import Span
from vertumnusd.control.keeping import Keeping
from vertumnusd.control.ledger import NO_DECODE_RANK, Ledger
from vertumnusd.control.matching import SMALL_PART, Matching
from vertumnusd.control.prefill_time import PrefillTime
from vertumnusd.control.request import Request
from vertumnusd.control.settings import Settings
from vertumnusd.control.worker_queue import Blocked, WorkerQueue, first_in_line
from vertumnusd.messages import ControlCommand, Dispatch

RECONSIDERED = 4  # requests, before one is dispatched


class Dispatcher:
    def __init__(
        self,
        settings: Settings,
        prefill_time: PrefillTime,
        fleet: Fleet,
        ledger: Ledger,
        matching: Matching,
    ) -> None:
        self._settings = settings
        self._prefill_time = prefill_time
        self._fleet = fleet
        self._ledger = ledger
        self._matching = matching
        self._keeping = Keeping(settings, ledger.homes, ledger.promised, matching)
        self._turns = 0
        self._given: dict[int, int] = {}  # by home: the last turn in which it was given a chain

    def dispatch(self, now: float) -> list[ControlCommand]:
        """Dispatch all that can be, in order of turn. Every try dispatches or blocks a queue."""
        commands: list[ControlCommand] = []
        if not self._ledger.lined_up:
            return commands
        ready = [queue for queue in self._ledger.lined_up.values() if queue.ready]
        while ready:
            queue = first_in_line(ready)
            commands += self._try(now, queue)
            if not queue.ready:
                ready.remove(queue)
        return commands

    def _try(self, now: float, queue: WorkerQueue) -> list[ControlCommand]:
        request, span, cached = self._next(queue)
        worker = queue.worker
        decode_rank = self._choose_decode_rank(request)
        if decode_rank is None:
            queue.blocked = Blocked.DECODE
            return []
        fresh_blocks = request.blocks - cached // self._settings.block_tokens
        if not self._ledger.homes.fits(span.base, fresh_blocks, span.ranks):
            queue.blocked = Blocked.HOME
            return []
        self._turns += 1
        self._given[span.base] = self._turns
        keep_homes = self._keeping.homes(request, worker, span, cached)
        self._ledger.dispatch(now, request, span, fresh_blocks, decode_rank, keep_homes)
        if self._settings.replication.enabled:
            self._matching.observe(request, worker, cached)
        command = Dispatch(
            term=self._fleet.term,
            epoch=self._fleet.standings[worker].epoch,
            request=request.name,
            attempt=request.submit.attempt,
            worker=worker.name,
            degree=worker.degree,
            base=worker.base,
            home_base=span.base,
            home_ranks=span.ranks,
            predicted_s=request.predicted_ns / 1e9,
            decode_rank=decode_rank,
            decode_blocks=request.decode_blocks,
            keep_homes=keep_homes,
        )
        return [command]

    def _next(self, queue: WorkerQueue) -> tuple[Request, Span, int]:
        """The request whose turn it is, its span and the tokens cached there.

        What it expected when it was placed may not be so yet: a follower of a request that still
        waits would compute that one's prefix. So times are predicted again, and the next one's
        looked at if that one's turn comes first now.
        """
        for more in reversed(range(RECONSIDERED)):
            request = queue.waiting[0]
            span, cached = self._choose_span(queue.worker, request)
            uncached = request.input_tokens - cached
            service_s = self._prefill_time.predict_s(queue.worker.degree, uncached, cached)
            self._ledger.predict(request, service_s, may_move=more > 0)
            if queue.waiting[0] is request:
                break
        return request, span, cached

    def _choose_decode_rank(self, request: Request) -> int | None:
        """None while there is no room, or while an older request waits for room."""
        if not request.decode_blocks:
            return NO_DECODE_RANK
        blocked = (q for q in self._ledger.queues.values() if q.blocked is Blocked.DECODE)
        if any(queue.waiting[0].order < request.order for queue in blocked):
            return None
        return self._ledger.decode.choose(request.decode_blocks)

    def _choose_span(self, worker: Worker, request: Request) -> tuple[Span, int]:
        """Where the chain is to lie: with the longest prefix, of equals in the emptiest home.

        A prefix that is a small part of the input does not count: a system prompt that all share
        would draw every chain into the home that had it first, and leave the others unused. Of
        homes as full, the one that a chain was given to longest ago is the first to forget.

        In one home if one can hold it, else on all of the worker's, unless its prefix lies on a
        part of them that has room. What the request ahead of it promises is there when it starts.
        """
        least = self._settings.least_degree(request.blocks)
        if least > self._settings.home_ranks:
            self._matching.lie_on(Span(worker.base, worker.degree))
        cached = self._cached_on(worker, request)
        if len(cached) == 1:
            return next(iter(cached.items()))
        wide_enough = [span for span in cached if span.ranks >= least]
        chosen = min(wide_enough, key=lambda span: self._preference(span, cached[span], request))
        return chosen, cached[chosen]

    def _cached_on(self, worker: Worker, request: Request) -> dict[Span, int]:
        """The tokens that are cached, or will be, on every span of the worker that comes to mind"""
        width, matching = self._settings.home_ranks, self._matching
        homes = worker.homes(width)
        there = matching.by_home(request, homes)
        cached = {Span(home, width): there.get(home, 0) for home in homes}
        cached |= matching.by_span(request, worker)
        for ahead in self._ledger.queues[worker].dispatched:
            if ahead.promised and ahead.home is not None:
                tokens = matching.shared_tokens(request, ahead)
                span = Span(ahead.home, ahead.home_ranks)
                cached[span] = max(tokens, cached.get(span, 0))
        return cached

    def _preference(self, span: Span, tokens: int, request: Request) -> tuple[int, ...]:
        """The least comes first."""
        counted = tokens if tokens * SMALL_PART >= request.input_tokens else 0
        fullness, given = self._ledger.homes.fullness(*span), self._given.get(span.base, 0)
        return -counted, span.ranks, fullness, given, span.base
