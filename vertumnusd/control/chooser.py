"""Which worker a request goes to: by J (``placement.py``), as queues, caches and links are now."""

from __future__ import annotations

from vertumnusd.control.fetching import Fetching
from vertumnusd.control.fleet import Worker
from vertumnusd.control.ledger import Ledger, nanoseconds
from vertumnusd.control.matching import Matching
from vertumnusd.control.placed import Placement
from vertumnusd.control.placement import Policy, Wait
from vertumnusd.control.prefill_time import PrefillTime
from vertumnusd.control.request import Request
from vertumnusd.control.settings import Settings
from vertumnusd.control.worker_queue import WorkerQueue


class Chooser:
    """Chooses; nothing is reserved but the room of a copy that the request is to wait for."""

    def __init__(
        self,
        settings: Settings,
        prefill_time: PrefillTime,
        ledger: Ledger,
        matching: Matching,
        fetching: Fetching,
    ) -> None:
        pause_s = settings.step_s if settings.does("pause") else float("inf")
        self._policy = Policy(prefill_time, settings.beta, settings.lambda_, pause_s)
        self._max_queue_s = settings.max_queue_s
        self._ledger = ledger
        self._matching = matching
        self._fetching = fetching

    def choose(self, now: float, request: Request, least_degree: int) -> Placement:
        """The cheapest worker; and the copy to wait for, if that is cheaper still.

        A worker of ``least_degree`` must serve. One with a queue above the limit is chosen only if
        all are.
        """
        prefixes = self._matching.prefixes(request)
        asked = _Asked(now, request, self._ledger)
        loads, limit_s = self._ledger.loads, self._max_queue_s
        kinds = loads.kinds(prefixes, least_degree, asked.clock_ns)
        comparison = self._policy.place(kinds, request.input_tokens, asked.wait, limit_s)
        if comparison.best is None:
            limit_s = float("inf")
            kinds = loads.kinds(prefixes, least_degree, asked.clock_ns)
            comparison = self._policy.place(kinds, request.input_tokens, asked.wait)
        best = comparison.best
        assert best is not None
        request.preferred_degree = comparison.preferred_degree
        wanted = self._fetching.wanted(request)
        if wanted is None:
            return Placement(best, comparison.of_kinds)
        fetching = self._policy.place_fetching(
            lambda degree: loads.kinds_of(degree, prefixes, asked.clock_ns),
            loads.degrees(least_degree),
            request.input_tokens,
            asked.wait,
            limit_s,
            self._fetching.price(wanted),
            best,
        )
        if fetching is None:
            return Placement(best, comparison.of_kinds)
        copy = self._fetching.fetch(now, request, wanted, fetching.worker)
        if copy is None:
            return Placement(best, comparison.of_kinds)
        transfer, commands = copy
        return Placement(fetching, comparison.of_kinds, transfer, tuple(commands))


class _Asked:
    """A request about which queues are asked; ``clock_ns`` is 0 where loads do not pass."""

    def __init__(self, now: float, request: Request, ledger: Ledger) -> None:
        self._now_ns = nanoseconds(now)
        self.clock_ns = self._now_ns if ledger.discipline.remaining else 0
        self._request = request
        self._discipline = ledger.discipline
        self._queues: dict[Worker, WorkerQueue] = ledger.queues

    def wait(self, worker: Worker, service_s: float, promised: bool) -> Wait:
        """What counts on blocks of those before it can not go before them."""
        turn = self._discipline.turn(self._request, service_s)
        overtakes_ns = None if promised else nanoseconds(service_s)
        return self._queues[worker].wait_of(self._now_ns, turn, overtakes_ns)
