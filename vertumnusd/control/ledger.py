"""The ledger: every accepted request, and all that is reserved for it.

Reservations are made and given back here and nowhere else, so that whatever way a request ends,
nothing of it stays. ``request.py`` lists what a request holds at which stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from vertumnusd.control import admission
from vertumnusd.control.decode_pools import DecodePools
from vertumnusd.control.errors import IllegalEvent
from vertumnusd.control.fleet import Worker
from vertumnusd.control.homes import Homes, Span
from vertumnusd.control.loads import Loads
from vertumnusd.control.promised import Promised, marks
from vertumnusd.control.request import Request
from vertumnusd.control.settings import Settings
from vertumnusd.control.stage import Stage
from vertumnusd.control.worker_queue import Blocked, Discipline, WorkerQueue
from vertumnusd.messages import Done, HandedOff, PrefillDone, Returned, RoomMissing, Submit

NO_DECODE_RANK: Final = -1

# Every submission ends as one of rejected, cancelled, lost or done. Tokens are those of prefills.
TOTALS: Final = (
    *("submitted", "rejected", "cancelled", "lost", "done"),
    *("input_tokens", "cached_tokens", "reports_missing"),
)


class Ledger:
    """Requests, the queues of serving workers, and what is left of homes and decode pools."""

    def __init__(self, settings: Settings) -> None:
        self.homes = Homes(settings)
        self.decode = DecodePools(settings)
        self.queues: dict[Worker, WorkerQueue] = {}  # of the workers that serve
        self.loads = Loads(settings.home_ranks)  # of the same workers
        self.lined_up: dict[Worker, WorkerQueue] = {}  # those in which something waits
        self.draining: dict[Worker, WorkerQueue] = {}  # nothing waits there, nor is placed
        self.requests: dict[str, Request] = {}
        self.unplaced: dict[str, Request] = {}  # in order of their deadlines
        self.promised = Promised()
        self.queued_tokens = 0  # of requests not dispatched
        self.totals = Counter(dict.fromkeys(TOTALS, 0))
        self._settings = settings
        self._promises = settings.does("promises")
        self.discipline = Discipline.of(settings)
        self._arrivals = 0

    def accept(self, now: float, submit: Submit) -> Request:
        """Take a request in; it has no place yet."""
        self._arrivals += 1
        request = Request(
            submit,
            arrival=self._arrivals,
            accepted_at=now,
            blocks=self._settings.blocks(submit.input_tokens),
            decode_blocks=admission.decode_blocks(self._settings, submit),
            marks=marks(submit.chain, self._settings.mark_blocks),
        )
        self.requests[submit.request] = request
        self.queued_tokens += submit.input_tokens
        return request

    def current(
        self, event: PrefillDone | RoomMissing | Returned | HandedOff | Done
    ) -> Request | None:
        """The request, if the event is about its present attempt and not late."""
        request = self.requests.get(event.request)
        if request is None or event.attempt < request.submit.attempt:
            return None
        if event.attempt > request.submit.attempt:
            raise IllegalEvent(f"{event.request}: attempt {event.attempt} was never submitted")
        if request.stage.queued and isinstance(event, PrefillDone | HandedOff):
            raise IllegalEvent(f"{event.request} was prefilled without being dispatched")
        return request

    def move(self, request: Request, stage: Stage) -> None:
        self.queued_tokens += (stage.queued - request.stage.queued) * request.input_tokens
        request.stage = stage

    def new_queue(self, worker: Worker) -> WorkerQueue:
        return WorkerQueue(worker, self.discipline)

    def open(self, queue: WorkerQueue) -> None:
        """A worker serves."""
        self.queues[queue.worker] = queue
        self.loads.open(queue.worker, queue.load_ns)
        self._note(queue)

    def close(self, worker: Worker) -> WorkerQueue:
        """It serves no more."""
        self.loads.close(worker)
        self.lined_up.pop(worker, None)
        return self.queues.pop(worker)

    def short_s(self) -> float:
        """A short queue, found without a look at them all; 0 if no worker serves."""
        least_loaded = self.loads.first()
        return 0.0 if least_loaded is None else self.queues[least_loaded].queue_s

    def shortest_s(self) -> float:
        """The shortest queue of all; 0 if no worker serves."""
        return min([queue.queue_s for queue in self.queues.values()], default=0.0)

    def wait_unplaced(self, request: Request, until: float) -> None:
        self.move(request, Stage.UNPLACED)
        request.worker, request.unplaced_until = None, until
        self.unplaced[request.name] = request

    def wait_at(
        self, request: Request, worker: Worker, service_s: float, fetch: int | None = None
    ) -> None:
        """Bind a request without a place to a worker, and reserve its predicted time there.

        With ``fetch`` it waits for this copy before it lines up.
        """
        request.worker, request.fetch = worker, fetch
        queue = self.queues[worker]
        if fetch is None:
            self.move(request, Stage.WAITING)
            queue.add(request, service_s)
            self._promise(request, worker)
        else:
            self.move(request, Stage.FETCHING)
            queue.hold(request, service_s)
        self._note(queue)

    def fetched(self, request: Request) -> None:
        """The copy that the request waited for is there, or will never be."""
        assert request.worker is not None
        queue = self.queues[request.worker]
        request.fetch = None
        self.move(request, Stage.WAITING)
        queue.let_go(request)
        self._note(queue)
        self._promise(request, request.worker)

    def _promise(self, request: Request, worker: Worker) -> None:
        """Not while it waits for a copy: who comes then and counts on its blocks would not wait."""
        if self._promises and request.submit.keep:
            request.promised = True
            self.promised.add(worker, request.marks)

    def predict(self, request: Request, service_s: float, *, may_move: bool) -> None:
        """The first request of a queue takes another time than it had reserved."""
        assert request.worker is not None
        queue = self.queues[request.worker]
        queue.predict(request, service_s, may_move=may_move)
        self._note(queue)

    def dispatch(
        self,
        now: float,
        request: Request,
        span: Span,
        fresh_blocks: int,
        decode_rank: int,
        keep_homes: tuple[int, ...] = (),
    ) -> None:
        """Set aside all that the first request of a queue needs to run, and to be kept."""
        assert request.worker is not None
        self.homes.reserve(span.base, fresh_blocks, span.ranks)
        for home in keep_homes:
            self.homes.reserve(home, fresh_blocks)
        request.keep_homes = keep_homes
        (request.home, request.home_ranks), request.fresh_blocks = span, fresh_blocks
        if decode_rank != NO_DECODE_RANK:
            self.decode.reserve(decode_rank, request.decode_blocks)
            request.decode_rank = decode_rank
        queue = self.queues[request.worker]
        queue.dispatch_first(nanoseconds(now))
        self._note(queue)
        self.move(request, Stage.DISPATCHED)

    def take_back(self, request: Request) -> None:
        """Undo a dispatch: the request waits again, its predicted time stays reserved."""
        assert request.worker is not None
        assert request.home is not None
        span = Span(request.home, request.home_ranks)
        self.release_home(request)
        self.release_decode(request)
        queue = self.queue_of(request.worker)
        queue.take_back(request, span)
        self._note(queue)
        self.move(request, Stage.WAITING)

    def _note(self, queue: WorkerQueue) -> None:
        """A queue has changed; of no interest if it drains."""
        if queue.worker in self.queues:
            self.loads.change(queue.worker, queue.load_ns)
            if queue.waiting:
                self.lined_up[queue.worker] = queue
            else:
                self.lined_up.pop(queue.worker, None)

    def queue_of(self, worker: Worker) -> WorkerQueue:
        """The queue of a worker that serves or drains."""
        return self.queues.get(worker) or self.draining[worker]

    def load_s(self, worker: Worker) -> float:
        """What waits for a worker; nothing does if it neither serves nor drains."""
        queue = self.queues.get(worker) or self.draining.get(worker)
        return queue.queue_s if queue else 0.0

    def unbind(self, requests: Iterable[Request]) -> None:
        """Take queued requests from where they wait, to be placed again."""
        for request in requests:
            self.unplaced.pop(request.name, None)
            self.release_time(request)

    def count_prefill(self, request: Request, cached_tokens: int) -> None:
        """The request's worker has prefilled it."""
        assert request.worker is not None
        queue = self.queue_of(request.worker)
        queue.input_tokens += request.input_tokens
        queue.cached_tokens += cached_tokens
        self.totals["input_tokens"] += request.input_tokens
        self.totals["cached_tokens"] += cached_tokens

    def release_time(self, request: Request) -> None:
        """Leave the worker's queue. Who stood behind the request for decode room is tried again."""
        stages = (Stage.FETCHING, Stage.WAITING, Stage.DISPATCHED)
        if request.worker is None or request.stage not in stages:
            return
        self.withdraw_promise(request)
        queue = self.queue_of(request.worker)
        if queue.blocked is Blocked.DECODE and queue.waiting[0] is request:
            self.unblock(Blocked.DECODE)
        queue.remove(request)
        self._note(queue)

    def finish(self, now: float, request: Request) -> None:
        """Its prefill is over: its worker goes on with the next one."""
        assert request.worker is not None
        self.withdraw_promise(request)
        queue = self.queue_of(request.worker)
        queue.finish(nanoseconds(now), request)
        self._note(queue)

    def withdraw_promise(self, request: Request) -> None:
        """The request has produced its blocks, or will not."""
        if request.promised:
            assert request.worker is not None
            self.promised.remove(request.worker, request.marks)
            request.promised = False

    def release_home(self, request: Request) -> None:
        """Room in a home: its worker tries again, also what its ranks had refused."""
        if request.home is not None:
            assert request.worker is not None
            self.homes.release(request.home, request.fresh_blocks, request.home_ranks)
            for home in request.keep_homes:
                self.homes.release(home, request.fresh_blocks)
            request.home, request.keep_homes = None, ()
            self.queue_of(request.worker).blocked = None

    def release_copy(self, home: int, blocks: int, ranks: int) -> None:
        """Room that a transfer no longer needs: who waits for room in a home is tried again."""
        self.homes.release(home, blocks, ranks)
        self.unblock(Blocked.HOME)

    def release_decode(self, request: Request) -> None:
        if request.decode_rank is not None:
            self.decode.release(request.decode_rank, request.decode_blocks)
            request.decode_rank = None
            self.unblock(Blocked.DECODE)

    def forget(self, request: Request, outcome: str) -> None:
        """Every trace of the request goes, but for one more in the total of its outcome."""
        del self.requests[request.name]
        self.unbind([request])
        self.release_home(request)
        self.release_decode(request)
        self.queued_tokens -= request.stage.queued * request.input_tokens
        self.totals[outcome] += 1

    def unblock(self, reason: Blocked) -> None:
        """Queues blocked for this reason are tried again."""
        for queue in self.queues.values():
            if queue.blocked is reason:
                queue.blocked = None

    def at_rest(self) -> bool:
        """Nothing is reserved, counted or queued: the base line."""
        queues_empty = not self.draining and not any(q.busy for q in self.queues.values())
        nothing_kept = not (self.requests or self.unplaced or self.queued_tokens or self.promised)
        return queues_empty and nothing_kept and self.homes.at_rest() and self.decode.at_rest()


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
