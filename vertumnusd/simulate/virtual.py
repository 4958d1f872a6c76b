"""Virtual ranks and leads under the real controller, on virtual time.

``VirtualCluster`` is to the controller what the nodes are: it takes its commands, and answers with
the events that ranks and leads would send. What a rank would compute takes the profile's time.

    Dispatch ──► the worker's lead runs it, or keeps it one ahead ──► BlocksChanged of its home's
                 ranks, then PrefillDone, HandedOff and Done, when the prefill is over
    DrainWorker ──► what is ahead is Returned; Drained when the running one is over
    Park, AdoptWorker ──► Parked, Adopted of every rank
    Replicate, Reclaim ──► see ``transfers.py``

Requests ask for one token, so nothing decodes. The ranks' pools say what is really cached; the
controller knows it from their reports only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any

from vertumnusd.control.controller import Controller
from vertumnusd.control.fleet import Worker
from vertumnusd.control.settings import Settings
from vertumnusd.messages import (
    Adopted,
    AdoptWorker,
    BlocksChanged,
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

TERM = 1
STUCK_S = 3600.0  # virtual seconds without anything happening before a run is given up


class StuckError(Exception):
    """Requests wait, and nothing will ever happen that could move them."""


@dataclass(slots=True)
class Lead:
    """A worker that adopted: the request it runs and, at most, one ahead."""

    worker: Worker
    running: Dispatch | None = None
    ahead: deque[Dispatch] = field(default_factory=deque)
    draining: DrainWorker | None = None


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
        self._chains: dict[int, list[bytes]] = {}  # of the requests that have not begun
        self._leads: dict[Worker, Lead] = {}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._now = 0.0
        transfers = Transfers(self._homes, self._names.edges, conditions, self._after, self._step)
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

    def _after(self, delay_s: float, happen: Callable[[], None]) -> None:
        heappush(self._due, (self._now + delay_s, next(self._order), happen))

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
        lead = self._leads[Worker(command.degree, command.base)]
        lead.draining = command
        while lead.ahead:
            returned = lead.ahead.popleft()
            self._answer(Returned(returned.request, returned.attempt, returned.worker))
        if lead.running is None:
            self._drained(lead)

    def _drained(self, lead: Lead) -> None:
        assert lead.draining is not None
        term, operation = lead.draining.term, lead.draining.operation
        self._answer(Drained(term, operation, lead.worker.degree, lead.worker.base))

    def _resume(self, command: Resume) -> None:
        self._leads[Worker(command.degree, command.base)].draining = None

    def _park(self, command: Park) -> None:
        for rank in Worker(command.degree, command.base).ranks:
            self._answer(Parked(rank, command.term, command.epoch))

    def _adopt(self, command: AdoptWorker) -> None:
        """All ranks of the worker switch to its geometry, and say so."""
        worker = Worker(command.degree, command.base)
        for other in [w for w in self._leads if set(w.ranks) & set(worker.ranks)]:
            if self._owned_at_degree and other.degree != worker.degree:
                self._unsettle(worker)
            del self._leads[other]
        self._leads[worker] = Lead(worker)
        for rank in worker.ranks:
            adopted = Adopted(rank, command.term, command.epoch, command.degree)
            self._answer(adopted, self._conditions.switch_s)

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
        self._chains[n] = chain = self._names.chain(arrival.blocks)
        self._step(Submit(str(n), 0, arrival.input_tokens, b"".join(chain), 1))

    def _reject(self, command: Reject) -> None:
        self._outcome.ttft_s[int(command.request)] = float("inf")
        self._outcome.ended += 1

    def _dispatch(self, command: Dispatch) -> None:
        lead = self._leads[Worker(command.degree, command.base)]
        if lead.running is None:
            self._start(lead, command)
        else:
            lead.ahead.append(command)

    def _start(self, lead: Lead, command: Dispatch) -> None:
        """Look up what is really cached, and run."""
        lead.running = command
        n = int(command.request)
        arrival, degree = self._arrivals[n], command.degree
        usable = self._conditions.usable_blocks(arrival.input_tokens)
        chain = self._chains.pop(n)
        home = self._span(command)
        blocks = home.leading(chain[:usable])
        home.pinned = frozenset(chain[:blocks])
        settle_s = self._settle(home, chain[:blocks]) if self._owned_at_degree else 0.0
        cached = blocks * BLOCK_TOKENS
        uncached = arrival.input_tokens - cached
        service_s = settle_s + arrival.noise * self._profile.actual_s(degree, uncached, cached)
        outcome = self._outcome
        outcome.cached_tokens[n], outcome.degree[n] = cached, degree
        outcome.busy_gpu_s += service_s * degree
        self._after(service_s, lambda: self._finish(lead, command, chain, cached, service_s))

    def _span(self, command: Dispatch) -> VirtualHome:
        """Where the chain of a request lies."""
        base, ranks = command.home_base, command.home_ranks
        if ranks == self._settings.home_ranks:
            return self._homes[base]
        return self._spans.setdefault((base, ranks), VirtualHome(self._ranks[base : base + ranks]))

    def _settle(self, home: VirtualHome, chain: Sequence[bytes]) -> float:
        """Seconds to move the pending blocks of a prefix to where the geometry wants them."""
        moved_bytes = home.pending_blocks(chain) * self._conditions.block_bytes * MISPLACED_SHARE
        if moved_bytes:
            self._outcome.moved_bytes += moved_bytes
            self._outcome.transfers += 1
        return moved_bytes / self._conditions.link_bytes_s

    def _finish(
        self, lead: Lead, command: Dispatch, chain: list[bytes], cached: int, service_s: float
    ) -> None:
        n, request, attempt = int(command.request), command.request, command.attempt
        self._outcome.ttft_s[n] = self._now - self._arrivals[n].at_s + self._conditions.outside_s
        self._outcome.ended += 1
        self._outcome.span_s = self._now
        home = self._span(command)
        self._report(home.use(chain, self._names.edges))
        home.pinned = frozenset()
        lead.running = None
        if lead.ahead:
            self._start(lead, lead.ahead.popleft())
        elif lead.draining is not None:
            self._drained(lead)
        self._step(PrefillDone(request, attempt, cached, service_s))
        self._step(HandedOff(request, attempt))
        self._step(Done(request, attempt))

    def _report(self, reports: Sequence[BlocksChanged]) -> None:
        for report in reports:
            self._step(report)
