"""The scheduler: which request waits where, and when it is dispatched.

A request is bound to a worker on arrival (``placement.py``) and waits here, until its worker can
take one more (``dispatcher.py``).

``request.py`` draws the stages of a request; ``ledger.py`` keeps what it holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from vertumnusd.control import admission
from vertumnusd.control.chooser import Chooser
from vertumnusd.control.copies import Copies
from vertumnusd.control.dispatcher import Dispatcher
from vertumnusd.control.errors import IllegalEvent
from vertumnusd.control.fetching import Fetching
from vertumnusd.control.fleet import Fleet, Worker
from vertumnusd.control.ledger import Ledger, nanoseconds
from vertumnusd.control.matching import Matching
from vertumnusd.control.paces import Paces
from vertumnusd.control.prefill_time import PrefillTime
from vertumnusd.control.request import Request
from vertumnusd.control.settings import Settings
from vertumnusd.control.slo import SloAccount
from vertumnusd.control.stage import Stage
from vertumnusd.control.worker_queue import Blocked, WorkerQueue
from vertumnusd.messages import (
    Abort,
    BlocksChanged,
    BlocksHeld,
    Cancel,
    ControlCommand,
    Done,
    HandedOff,
    Lost,
    PrefillDone,
    Reject,
    Returned,
    RoomMissing,
    Submit,
)

PLACED_AT_ONCE = 128  # requests; a step places so many twice at most, in some 20 ms


class Scheduler:
    """Takes what happens to requests, workers and ranks; ``dispatch`` is to follow every event."""

    def __init__(self, settings: Settings, prefill_time: PrefillTime, fleet: Fleet) -> None:
        self.ledger = Ledger(settings)
        self.matching = Matching(settings, prefill_time, self.ledger.loads, self.ledger.promised)
        self.copies = Copies(settings.home_ranks, self.ledger)
        self.slo = SloAccount(settings.slo)
        self.paces = Paces(settings.reconfiguration.window_s)
        self._settings = settings
        self._fleet = fleet
        self._fetching = Fetching(settings, fleet, self.ledger, self.matching, self.copies)
        self._chooser = Chooser(settings, prefill_time, self.ledger, self.matching, self._fetching)
        self._to_place: dict[str, Request] = {}  # placed again at the next steps
        self._dispatcher = Dispatcher(settings, prefill_time, fleet, self.ledger, self.matching)

    # --- what happens to requests

    def submit(self, now: float, submit: Submit) -> list[ControlCommand]:
        known = self.ledger.requests.get(submit.request)
        if known is not None and submit.attempt <= known.submit.attempt:
            return []
        if known is not None:
            raise IllegalEvent(f"{submit.request} submitted again while its last attempt lives")
        admission.check(self._settings, submit)
        self.ledger.totals["submitted"] += 1
        refusal = self._refusal(submit)
        if refusal is not None:
            self.ledger.totals["rejected"] += 1
            return [refusal]
        return self._place(now, self.ledger.accept(now, submit))

    def cancel(self, event: Cancel) -> list[ControlCommand]:
        """A queued request is gone at once; a dispatched one when it is ``Done``."""
        request = self.ledger.requests.get(event.request)
        if request is None or request.cancelled:
            return []
        if request.stage.queued:
            self.ledger.forget(request, "cancelled")
            return []
        assert request.worker is not None
        self.ledger.withdraw_promise(request)
        request.cancelled = True
        return [Abort(request.name, request.worker.name)]

    def prefill_done(self, now: float, event: PrefillDone) -> None:
        """The worker takes one more. Of an aborted prefill it only says that it is over."""
        request = self.ledger.current(event)
        if request is not None and request.stage is Stage.DISPATCHED:
            if not request.cancelled:
                ttft_s = now - request.accepted_at
                self.slo.record(request.input_tokens, event.cached_tokens, ttft_s)
                self.ledger.count_prefill(request, event.cached_tokens)
                assert request.worker is not None
                degree = request.worker.degree
                self.paces.observe(now, degree, event.prefill_s, event.expected_s)
            self.ledger.finish(now, request)
            self.ledger.move(request, Stage.PREFILLED)

    def room_missing(self, now: float, event: RoomMissing) -> list[ControlCommand]:
        """The request waits again where it stood, until its home has room."""
        request = self._take_back(event)
        if request is not None and request.worker in self.ledger.draining:
            return self._place_again(now, [request])
        return []

    def returned(self, now: float, event: Returned) -> list[ControlCommand]:
        """The request has not begun, and its worker drains, or did a moment ago."""
        request = self._take_back(event)
        return [] if request is None else self._place_again(now, [request])

    def _take_back(self, event: RoomMissing | Returned) -> Request | None:
        """Undo the dispatch. None if there is no more to do.

        A moment later the request can be dispatched to another worker; a repeated event is not
        about that one.
        """
        request = self.ledger.current(event)
        if request is None or request.stage.queued:
            return None
        if request.worker is None or request.worker.name != event.worker:
            return None
        if request.stage is not Stage.DISPATCHED:
            raise IllegalEvent(f"{request.name} cannot wait again after its prefill")
        if request.cancelled:
            self.ledger.forget(request, "cancelled")
            return None
        self.ledger.take_back(request)
        return request

    def handed_off(self, event: HandedOff) -> None:
        """The prefill ranks are free of it; of an aborted one perhaps without a PrefillDone."""
        request = self.ledger.current(event)
        if request is not None and request.stage is not Stage.HANDED_OFF:
            self.ledger.release_time(request)
            self.ledger.release_home(request)
            self.ledger.move(request, Stage.HANDED_OFF)

    def done(self, event: Done) -> None:
        request = self.ledger.current(event)
        if request is not None:
            self.ledger.forget(request, "cancelled" if request.cancelled else "done")

    # --- what happens to workers and ranks

    def expose(self, now: float, workers: Iterable[Worker]) -> list[ControlCommand]:
        """The workers serve: they take their share of all that waits, here or without a place.

        Otherwise the first of several workers to return would get everything, and keep it.
        """
        return self._open(now, [self.ledger.new_queue(worker) for worker in workers])

    def drain(self, now: float, workers: Iterable[Worker]) -> list[ControlCommand]:
        """No more for these workers: what waits for them goes elsewhere, what they run ends."""
        queues = [self.ledger.close(worker) for worker in workers]
        self.ledger.draining.update((queue.worker, queue) for queue in queues)
        waiting = [request for queue in queues for request in queue.queued]
        self.ledger.unbind(waiting)
        return self._place_all(now, waiting)

    def resume(self, now: float, workers: Iterable[Worker]) -> list[ControlCommand]:
        """The drain was called off."""
        return self._open(now, [self.ledger.draining.pop(worker) for worker in workers])

    def owes_nothing(self, workers: Iterable[Worker]) -> bool:
        """Whether all that was dispatched to these workers has left them."""
        return not self._owed(set(workers))

    def retire(self, workers: Iterable[Worker]) -> None:
        """Drained workers go."""
        for worker in workers:
            assert not self.ledger.draining[worker].busy
            del self.ledger.draining[worker]

    def running_s(self, now: float, worker: Worker) -> float:
        """What is left of what the worker runs now, as predicted: how long a drain would take."""
        return self.ledger.queues[worker].running_ns(nanoseconds(now)) / 1e9

    def unplaced_degree(self) -> int:
        """The least degree of a worker that would have room for all that has no place; 0: none."""
        unplaced = self.ledger.unplaced.values()
        return max((self._settings.least_degree(r.blocks) for r in unplaced), default=0)

    def waits(self, name: str) -> bool:
        """Whether the request has not been given to a worker yet."""
        request = self.ledger.requests.get(name)
        return request is not None and request.stage.queued

    def waiting_tokens(self, worker: Worker) -> int:
        return sum(request.input_tokens for request in self.ledger.queues[worker].waiting)

    def _open(self, now: float, queues: list[WorkerQueue]) -> list[ControlCommand]:
        waiting = [r for queue in self.ledger.queues.values() for r in queue.waiting]
        waiting += self.ledger.unplaced.values()
        self.ledger.unbind(waiting)
        for queue in queues:
            self.ledger.open(queue)
        return self._place_all(now, waiting)

    def _owed(self, workers: set[Worker]) -> list[Request]:
        """What the prefill ranks of these workers still have to do with."""
        owed = (Stage.DISPATCHED, Stage.PREFILLED)
        requests = self.ledger.requests.values()
        return [r for r in requests if r.stage in owed and r.worker in workers]

    def withdraw(self, now: float, workers: list[Worker], reason: str) -> list[ControlCommand]:
        """The workers are gone: what they ran is lost, what waited goes elsewhere."""
        lost = self._lose(self._owed(set(workers)), reason)
        waiting = [r for worker in workers for r in self.ledger.queue_of(worker).queued]
        self.ledger.unbind(waiting)
        for worker in workers:
            if self.ledger.draining.pop(worker, None) is None:
                self.ledger.close(worker)
        return [*lost, *self._place_all(now, waiting)]

    def decode_rank_up(self, rank: int) -> None:
        self.ledger.decode.rank_up(rank)
        self.ledger.unblock(Blocked.DECODE)

    def decode_rank_down(self, now: float, rank: int, reason: str) -> list[ControlCommand]:
        """Every request with blocks there is lost, also one that is still in its prefill."""
        held = [r for r in self.ledger.requests.values() if r.decode_rank == rank]
        lost = self._lose(held, reason)
        self.ledger.decode.rank_down(now, rank)
        return lost

    def drop_rank(self, rank: int) -> None:
        """Forget what a lost prefill rank held."""
        self.matching.trie.drop_rank(rank)
        self.ledger.homes.drop_rank(rank)

    def blocks_held(self, held: BlocksHeld) -> None:
        """Believe what a rank says of itself after its reports had a gap."""
        self.matching.trie.resync(held)

    def blocks_changed(self, report: BlocksChanged) -> int:
        """Take a pool's report in; how many before it are missing. Negative for a repeated one.

        A request that this home had refused is tried again, but only when the home comes to have
        room that it had not: the failed attempt itself changes pools, and must not be the reason
        for the next one.
        """
        missing = self.matching.trie.apply(report)
        if missing < 0:
            return missing
        self.ledger.totals["reports_missing"] += missing
        homes = self.ledger.homes
        queue = self.ledger.queues.get(self._fleet.worker_of(report.rank))
        if queue is None or queue.blocked is not Blocked.REFUSED or queue.refusal is None:
            homes.report(report)
            return missing
        span = queue.refusal.span
        before, needed = homes.unpinned_share(*span), homes.share(queue.refusal.blocks, span.ranks)
        homes.report(report)
        if before < needed <= homes.unpinned_share(*span):
            queue.blocked = None
        return missing

    def _lose(self, requests: list[Request], reason: str) -> list[ControlCommand]:
        """End these attempts. Nobody waits to hear of those that were cancelled."""
        for request in requests:
            self.ledger.forget(request, "cancelled" if request.cancelled else "lost")
        return [Lost(r.name, r.submit.attempt, reason) for r in requests if not r.cancelled]

    # --- time

    def next_deadline(self) -> float | None:
        if self._to_place:
            return 0.0  # at once
        unplaced, none_since = self.ledger.unplaced, self.ledger.decode.none_since
        if not unplaced and none_since is None:
            return self.copies.next_deadline()
        deadlines = [self.copies.next_deadline()]
        deadlines += [r.unplaced_until for r in islice(unplaced.values(), 1)]
        if none_since is not None and self._waiting_to_decode():
            deadlines.append(none_since + self._settings.unplaced_wait_s)
        return min([deadline for deadline in deadlines if deadline is not None], default=None)

    def tick(self, now: float) -> list[ControlCommand]:
        """Turn away the requests that no worker, or no decode rank, came to serve in time.

        Copies that take too long are given up.
        """
        self.copies.pass_time(now)
        late = [r for r in self.ledger.unplaced.values() if r.unplaced_until <= now]
        return [
            *self._turn_away(late, "no worker serves"),
            *self._turn_away(self._without_decode_rank(now), "no decode rank serves"),
        ]

    def _without_decode_rank(self, now: float) -> list[Request]:
        """Those that wait to decode while every decode rank has been gone for too long."""
        none_since = self.ledger.decode.none_since
        if none_since is None or now < none_since + self._settings.unplaced_wait_s:
            return []
        return self._waiting_to_decode()

    def _waiting_to_decode(self) -> list[Request]:
        waiting = (r for queue in self.ledger.queues.values() for r in queue.waiting)
        return [request for request in waiting if request.decode_blocks]

    def _turn_away(self, requests: list[Request], reason: str) -> list[ControlCommand]:
        for request in requests:
            self.ledger.forget(request, "rejected")
        retry_s = self._settings.unplaced_wait_s
        return [admission.overloaded(r.submit, reason, retry_s) for r in requests]

    # --- placement

    def _refusal(self, submit: Submit) -> Reject | None:
        settings, ledger = self._settings, self.ledger
        oversized = admission.refuse_oversized(settings, submit)
        tokens = ledger.queued_tokens + submit.input_tokens
        nothing_is_full = (
            tokens <= settings.max_queue_tokens and ledger.short_s() <= settings.max_queue_s
        )
        if oversized is not None or nothing_is_full:
            return oversized
        shortest_s = ledger.shortest_s()
        return admission.refuse_overload(settings, submit, ledger.queued_tokens, shortest_s)

    def _place_again(self, now: float, waiting: list[Request]) -> list[ControlCommand]:
        self.ledger.unbind(waiting)
        return self._place_all(now, waiting)

    def _place_all(self, now: float, unbound: list[Request]) -> list[ControlCommand]:
        """The first ones at once, the others at the next steps: one step must not take too long."""
        unbound.sort(key=lambda request: request.arrival)
        for request in unbound[PLACED_AT_ONCE:]:
            self.ledger.wait_unplaced(request, now + self._settings.unplaced_wait_s)
            self._to_place[request.name] = request
        at_once = unbound[:PLACED_AT_ONCE]
        return [command for request in at_once for command in self._place(now, request)]

    def _place_more(self, now: float) -> list[ControlCommand]:
        """Those that are still there, and that a worker may serve."""
        waiting = self._to_place.values()
        more = [request for request in waiting if self.ledger.unplaced.get(request.name) is request]
        self._to_place = {}
        self.ledger.unbind(more)
        return self._place_all(now, more)

    def _place(self, now: float, request: Request) -> list[ControlCommand]:
        """Bind the request to the worker with the smallest J; if none can be, it waits for one.

        Says so only if the worker, or the copy that it waits for, is another one than before.
        """
        least_degree = self._settings.least_degree(request.blocks)
        if not self.ledger.loads.serves(least_degree):
            self.ledger.wait_unplaced(request, now + self._settings.unplaced_wait_s)
            return []
        placement = self._chooser.choose(now, request, least_degree)
        worker, transfer = placement.terms.worker, placement.transfer
        moved = (worker, transfer) != (request.worker, request.fetch)
        self.ledger.wait_at(request, worker, placement.terms.price.service_s, transfer)
        if not moved:
            return [*placement.commands]
        epoch = self._fleet.standings[worker].epoch
        return [placement.placed(self._fleet.term, epoch, request), *placement.commands]

    def dispatch(self, now: float) -> list[ControlCommand]:
        commands = self._place_more(now) if self._to_place else []
        commands += self._fetching.settle()
        commands += self._dispatcher.dispatch(now)
        return commands

    def at_rest(self) -> bool:
        """Nothing is reserved, queued, or copied."""
        return not self.copies and self.ledger.at_rest()
