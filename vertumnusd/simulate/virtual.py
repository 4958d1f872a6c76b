"""Virtual ranks and leads under the real controller, on virtual time.

``VirtualCluster`` is to the controller what the nodes are: it takes its commands, and answers with
the events that ranks and leads would send. What a rank would compute takes the profile's time.

    Dispatch ──► the worker runs it, see ``worker.py`` ──► BlocksChanged of its home's ranks, then
                 PrefillDone, HandedOff and Done, when the prefill is over
    DrainWorker ──► what has not begun is Returned; Drained when what has begun is over
    Park, AdoptWorker ──► Parked, Adopted of every rank
    Replicate, CancelTransfer, Reclaim ──► see ``transfers.py``

Requests ask for one token, so nothing decodes. The ranks' pools say what is really cached; the
controller knows it from their reports only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any

from vertumnusd.control.controller import Controller
from vertumnusd.control.fleet import Worker
from vertumnusd.control.lead_run import Geometry
from vertumnusd.control.settings import Settings
from vertumnusd.control.step_order import StepLimits
from vertumnusd.messages import (
    Adopted,
    AdoptWorker,
    BlocksChanged,
    CancelTransfer,
    ControlCommand,
    ControlEvent,
    Converted,
    Dispatch,
    Done,
    Drained,
    DrainWorker,
    HandedOff,
    Park,
    Parked,
    PrefillDone,
    RankUp,
    Reclaim,
    Reject,
    Replicate,
    Resume,
    Returned,
    Seated,
    Submit,
)
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.names import BlockNames
from vertumnusd.simulate.outcome import Conversion, Outcome
from vertumnusd.simulate.profiles import profile
from vertumnusd.simulate.ranks import MISPLACED_SHARE, VirtualHome, VirtualRank
from vertumnusd.simulate.record import Recording
from vertumnusd.simulate.traces import BLOCK_TOKENS, Arrival
from vertumnusd.simulate.transfers import Transfers
from vertumnusd.simulate.worker import VirtualRun, VirtualWorker

TERM = 1
STUCK_S = 3600.0  # virtual seconds without anything happening before a run is given up


class StuckError(Exception):
    """Requests wait, and nothing will ever happen that could move them."""


class VirtualCluster:
    def __init__(
        self, policy: str, settings: Settings, conditions: Conditions, owned_at_degree: bool
    ) -> None:
        """``owned_at_degree``: KV belongs to the ranks of a worker, not of a home, so conversions
        leave it pending."""
        self._policy = policy
        self._settings = settings
        self._conditions = conditions
        self._owned_at_degree = owned_at_degree
        self._profile = profile(conditions.profile)
        self._controller = Controller(settings, self._profile.predicted)
        self._ranks = [VirtualRank(n, settings.kv_blocks) for n in range(settings.ranks)]
        width = settings.home_ranks
        self._homes = {
            base: VirtualHome(self._ranks[base : base + width])
            for base in range(0, settings.ranks, width)
        }
        self._spans: dict[tuple[int, int], VirtualHome] = {}  # of chains that one home cannot hold
        self._names = BlockNames()
        self._chains: dict[int, tuple[list[bytes], bytes]] = {}  # of the requests in the cluster
        self._limits = StepLimits(settings.step_s).under(settings)
        self._workers: dict[Worker, VirtualWorker] = {}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._now = 0.0
        transfers = Transfers(self._homes, self._span, conditions, self._after, self._step)
        self._transfers = transfers
        self._obey: dict[type, Callable[[Any], None]] = {
            DrainWorker: self._drain,
            Resume: self._resume,
            Park: self._park,
            AdoptWorker: self._adopt,
            Converted: self._converted,
            Dispatch: self._dispatch,
            Reject: self._reject,
            Replicate: lambda command: transfers.replicate(self._now, command),
            CancelTransfer: transfers.cancel,
            Reclaim: transfers.reclaim,
        }

    def run(self, arrivals: Sequence[Arrival], recording: Recording | None = None) -> Outcome:
        """Play the arrivals until every request has ended."""
        self._recording = recording
        self._arrivals = arrivals
        self._outcome = Outcome.empty(
            self._policy, self._settings.ranks, [arrival.input_tokens for arrival in arrivals]
        )
        self._outcome.composition = self._settings.composition
        self._boot()
        self._record()
        for n, arrival in enumerate(arrivals):
            self._pass_time(arrival.at_s)
            self._submit(n, arrival)
        while self._outcome.ended < len(arrivals):
            self._pass_time(self._next_due())
        self._transfers.count(self._outcome)
        for worker in self._workers.values():
            self._retire(worker)
        return self._outcome

    # --- time ---------------------------------------------------------------------------------

    def _pass_time(self, until: float) -> None:
        """Let everything that is due up to ``until`` happen, in order."""
        due, controller = self._due, self._controller
        while True:
            deadline = controller.next_deadline()
            if due and due[0][0] <= until and (deadline is None or due[0][0] <= deadline):
                self._now, _, happen = heappop(due)
                happen()
            elif deadline is not None and deadline <= until:
                self._now = max(self._now, deadline)
                self._carry_out(controller.tick(self._now))
            else:
                break
        self._now = until

    def _next_due(self) -> float:
        deadline = self._controller.next_deadline()
        times = [due[0] for due in self._due[:1]]
        if deadline is not None:
            times.append(deadline)
        if not times or (not self._due and self._now > self._outcome.span_s + STUCK_S):
            waiting = len(self._arrivals) - self._outcome.ended
            raise StuckError(f"{waiting} requests wait at {self._now:.0f} s, and nothing is due")
        return min(times)

    def at(self, at_s: float, happen: Callable[[], None]) -> None:
        heappush(self._due, (at_s, next(self._order), happen))

    def _after(self, delay_s: float, happen: Callable[[], None]) -> None:
        self.at(self._now + delay_s, happen)

    def _answer(self, event: ControlEvent, delay_s: float = 0.0) -> None:
        """Send an event once what happens now is over, or later."""
        self._after(delay_s, lambda: self._step(event))

    def _step(self, event: ControlEvent) -> None:
        commands = self._controller.step(self._now, event)
        if commands:
            self._carry_out(commands)

    def _carry_out(self, commands: Sequence[ControlCommand]) -> None:
        if self._recording is not None:
            self._recording.commands(self._now, commands)
        for command in commands:
            obey = self._obey.get(type(command))
            if obey is not None:
                obey(command)

    def _record(self) -> None:
        """Keep a picture of the cluster, and another one every interval."""
        if self._recording is not None:
            self._recording.cluster(self._now, self._controller.snapshot(self._now))
            self._after(self._recording.interval_s, self._record)

    # --- workers ------------------------------------------------------------------------------

    def _boot(self) -> None:
        """Everything is up and serves at time 0."""
        self._now = -self._conditions.switch_s
        self._step(Seated(TERM))
        for rank in range(self._settings.ranks + self._settings.decode_ranks):
            self._step(RankUp(rank, "prefill" if rank < self._settings.ranks else "decode", 1))

    def _drain(self, command: DrainWorker) -> None:
        self._workers[Worker(command.degree, command.base)].drain(self._now, command)

    def drained(self, worker: VirtualWorker) -> None:
        assert worker.draining is not None
        term, operation = worker.draining.term, worker.draining.operation
        self._answer(Drained(term, operation, worker.worker.degree, worker.worker.base))

    def _resume(self, command: Resume) -> None:
        self._workers[Worker(command.degree, command.base)].resume()

    def _park(self, command: Park) -> None:
        for rank in Worker(command.degree, command.base).ranks:
            self._answer(Parked(rank, command.term, command.epoch))

    def _adopt(self, command: AdoptWorker) -> None:
        """All ranks of the worker switch to its geometry, and say so."""
        worker = Worker(command.degree, command.base)
        for other in [w for w in self._workers if set(w.ranks) & set(worker.ranks)]:
            if self._owned_at_degree and other.degree != worker.degree:
                self._unsettle(worker)
            self._retire(self._workers.pop(other))
        layers, times = self._conditions.layers, self._profile.predicted
        geometry = Geometry(command.term, command.epoch, worker.ranks, BLOCK_TOKENS, layers, times)
        self._workers[worker] = VirtualWorker(worker, geometry, self._limits, self)
        for rank in worker.ranks:
            adopted = Adopted(rank, command.term, command.epoch, command.degree)
            self._answer(adopted, self._conditions.switch_s)

    def _retire(self, worker: VirtualWorker) -> None:
        self._outcome.busy_gpu_s += worker.busy_s * worker.worker.degree

    def _unsettle(self, worker: Worker) -> None:
        for rank in worker.ranks:
            self._ranks[rank].unsettle()

    def _converted(self, command: Converted) -> None:
        if command.outcome == "exposed":
            before, after = command.before, command.after
            times = (command.drain_s, command.switch_s)
            self._outcome.conversions.append(Conversion(self._now, before, after, *times))

    # --- requests -----------------------------------------------------------------------------

    def _submit(self, n: int, arrival: Arrival) -> None:
        names = self._names.chain(arrival.blocks)
        chain = b"".join(names)
        self._chains[n] = names, chain
        self._step(Submit(str(n), 0, arrival.input_tokens, chain, 1))

    def _reject(self, command: Reject) -> None:
        self._outcome.ttft_s[int(command.request)] = float("inf")
        self._outcome.ended += 1

    def _dispatch(self, command: Dispatch) -> None:
        worker = self._workers[Worker(command.degree, command.base)]
        n = int(command.request)
        tokens = self._arrivals[n].input_tokens
        run = VirtualRun(command, *self._chains[n], tokens, worker.geometry)
        worker.admit(self._now, run)

    def reserve(self, run: VirtualRun) -> None:
        """Look up what is really cached, and pin it."""
        n, degree = int(run.dispatch.request), run.dispatch.degree
        arrival = self._arrivals[n]
        home = self._span(run.dispatch.home_base, run.dispatch.home_ranks)
        blocks = home.leading(run.names[: self._conditions.usable_blocks(arrival.input_tokens)])
        found = run.names[:blocks]
        home.pinned[n] = found
        settle_s = self._settle(home, found) if self._owned_at_degree else 0.0
        run.cached_tokens = blocks * BLOCK_TOKENS
        uncached, cached = run.uncached_tokens, run.cached_tokens
        run.predicted_s = run.geometry.predict_s(uncached, cached)
        pace = self._conditions.pace(degree)
        alone_s = pace * self._profile.actual_s(degree, uncached, cached)
        run.actual_s = settle_s + arrival.noise * alone_s
        overhead_s = pace * self._profile.predicted.overhead_s(degree)
        run.overhead_s = arrival.noise * min(overhead_s, alone_s)
        self._outcome.cached_tokens[n], self._outcome.degree[n] = cached, degree

    def _span(self, base: int, ranks: int) -> VirtualHome:
        """Where a chain lies."""
        if ranks == self._settings.home_ranks:
            return self._homes[base]
        return self._spans.setdefault((base, ranks), VirtualHome(self._ranks[base : base + ranks]))

    def _settle(self, home: VirtualHome, chain: Sequence[bytes]) -> float:
        """Seconds to move the pending blocks of a prefix to where the geometry wants them."""
        moved_bytes = home.settle(chain) * self._conditions.block_bytes * MISPLACED_SHARE
        if moved_bytes:
            self._outcome.moved_bytes += moved_bytes
            self._outcome.transfers += 1
        return moved_bytes / self._conditions.link_bytes_s

    def store(self, run: VirtualRun) -> None:
        home = self._span(run.dispatch.home_base, run.dispatch.home_ranks)
        del home.pinned[int(run.dispatch.request)]
        self._report(home.use(run.names))
        for kept in run.dispatch.keep_homes:  # those that still have what was not computed
            further = self._homes[kept]
            if further.leading(run.names) >= run.cached_tokens // BLOCK_TOKENS:
                self._report(further.use(run.names))

    def ended(self, run: VirtualRun) -> None:
        request, attempt = run.dispatch.request, run.dispatch.attempt
        n = int(request)
        del self._chains[n]
        self._outcome.ttft_s[n] = self._now - self._arrivals[n].at_s + self._conditions.outside_s
        self._outcome.ended += 1
        self._outcome.span_s = self._now
        self._step(PrefillDone(request, attempt, run.cached_tokens, run.elapsed_s, run.expected_s))
        self._step(HandedOff(request, attempt))
        self._step(Done(request, attempt))

    def returned(self, run: VirtualRun) -> None:
        home = self._span(run.dispatch.home_base, run.dispatch.home_ranks)
        home.pinned.pop(int(run.dispatch.request), None)
        command = run.dispatch
        self._answer(Returned(command.request, command.attempt, command.worker))

    def _report(self, reports: Sequence[BlocksChanged]) -> None:
        for report in reports:
            self._step(report)
