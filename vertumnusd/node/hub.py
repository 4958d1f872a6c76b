"""The node's crossroads: carries events to the pure machines and their commands to where they act.

    gateway ──submit, leave──► ┌─────┐ ──event──► Controller   (this node's, if it holds the seat)
    ranks ──────message──────► │ Hub │ ──event──► Lead          (one per worker led here)
                               └─────┘ ──event──► Answering     (one per request of this gateway)

Everything here runs to completion without awaiting: an event is handled, the commands it caused are
carried out, and the events those caused are handled in turn, before the next one is taken. So the
machines never see each other half way. Sending is putting a message into a bounded outbox.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Concatenate, ParamSpec

from vertumnusd.control.answering import (
    AbortAtLead,
    AdmitToLead,
    Answering,
    AnsweringCommand,
    Emit,
    Over,
    Resubmit,
)
from vertumnusd.control.controller import Controller, IllegalEvent
from vertumnusd.control.lead import FirstToken, Lead, LeadCommand, RunFailed, SendRank
from vertumnusd.control.transfer import TransferCommand, TransferLimits, Transfers, delete
from vertumnusd.messages import (
    Abort,
    Adopt,
    Adopted,
    AdoptWorker,
    AskBlocks,
    BlocksChanged,
    BlocksHeld,
    Cancel,
    CancelTransfer,
    Closed,
    ControlCommand,
    ControlEvent,
    Converting,
    CopyRefused,
    CopyReleased,
    CopyReserved,
    DecodeFailed,
    Dispatch,
    Done,
    Drain,
    Drained,
    DrainWorker,
    Drawn,
    Exposed,
    FromRank,
    HandedOff,
    Hold,
    Installed,
    Lost,
    Merge,
    Park,
    Parked,
    Pinned,
    Placed,
    PrefillDone,
    Published,
    Pulled,
    RankDown,
    RankUp,
    Ready,
    Reclaim,
    ReclaimPrefix,
    Refused,
    Reject,
    Replicate,
    ReportBlocks,
    Reserved,
    ReserveFailed,
    Resume,
    Returned,
    RoomMissing,
    Seated,
    Split,
    StepDone,
    StepFailed,
    Undrain,
    Withdrawn,
)
from vertumnusd.node.accepted import Accepted
from vertumnusd.node.audits import Audits, Ended
from vertumnusd.node.effects import Effects
from vertumnusd.node.leads import Leads, LeadSettings
from vertumnusd.node.service import Job

Event = ParamSpec("Event")


class Hub:
    """Synchronous; owned by the daemon's one trio thread."""

    def __init__(
        self,
        controller: Controller,
        leads: LeadSettings,
        effects: Effects,
        transfers: TransferLimits,
    ) -> None:
        self._controller = controller
        self._effects = effects
        self._leads = Leads(leads)
        self._requests: dict[str, Accepted] = {}
        self._transfers = Transfers(transfers)
        self._audits = Audits()
        self._events: deque[ControlEvent] = deque()
        self._busy = False

    # --- what happens to the node

    def take_seat(self, term: int) -> None:
        """Become the controller of ``term``."""
        self._post(Seated(term))

    def submit(self, job: Job) -> None:
        """A gateway accepted ``job``; its answer comes through ``Effects.emit``."""
        accepted = self._requests[job.request] = Accepted(job, self._effects.chain)
        self._post(accepted.submit())

    def leave(self, request: str) -> None:
        """The client does not want the rest of the answer. Unknown requests are over already."""
        entry = self._requests.get(request)
        if entry is not None:
            self._act(request, entry.answering.on_client_left())
        self._drain()

    def rank_up(self, event: RankUp) -> None:
        self._post(event)

    def rank_down(self, event: RankDown) -> None:
        """These ranks' processes are gone.

        The controller hears of it before anything that follows from it, lest it dispatch to them.
        """
        self._events.appendleft(event)
        for rank in (event.rank, *event.also):
            if event.kind == "decode":
                self._decode_rank_gone(rank)
            else:
                self._prefill_rank_gone(rank)
        if event.kind == "prefill":
            self._act_transfers(self._transfers.lose((event.rank, *event.also)))
        self._drain()

    def tick(self) -> None:
        """Let deadlines pass; ranks that stopped making progress are killed."""
        for lead in self._leads:
            for rank in lead.stuck_ranks(self._effects.now()):
                self._effects.kill(rank)
            self._act_lead(lead.tick(self._effects.now()))
        self._act_transfers(self._transfers.tick(self._effects.now()))
        self.pass_deadline()

    def next_deadline(self) -> float | None:
        """When the controller has something to do though nothing happens."""
        return self._controller.next_deadline()

    def pass_deadline(self) -> None:
        """Let the controller do it."""
        self._carry_out(self._controller.tick(self._effects.now()))
        self._drain()

    def from_rank(self, message: FromRank) -> None:
        """A rank said something. Messages about forgotten requests are late, and ignored."""
        now = self._effects.now()
        match message:
            case Ready():
                pass  # the supervisor's business
            case Adopted() | Parked() | BlocksChanged():
                self._events.append(message)
            case BlocksHeld():
                self._audits.hear(message, self._controller.hear)
                self._events.append(message)
            case Reserved() | ReserveFailed() | StepDone() | StepFailed():
                lead = self._leads.of_rank(message.rank)
                if lead is not None and lead.epoch == message.epoch:
                    self._act_lead(lead.step(now, message))
            case Pulled():
                lead = self._lead_of(self._requests.get(message.request))
                if lead is not None:
                    self._act_lead(lead.step(now, message))
            case Drawn():
                for request, token in zip(message.requests, message.tokens, strict=True):
                    self._tell(request, Answering.on_drawn, now, token)
            case DecodeFailed():
                self._tell(message.request, Answering.on_decode_failed, message.reason)
            case Closed():
                self._tell(message.request, Answering.on_closed, message.rank)
            case (
                Pinned()
                | CopyReserved()
                | CopyRefused()
                | Installed()
                | Published()
                | CopyReleased()
            ):
                self._act_transfers(self._transfers.step(message))
            case Refused():
                self._effects.report(message)
        self._drain()

    # --- what operators do

    def takes_work(self) -> bool:
        """Whether a worker serves, or will in a moment."""
        return self._controller.takes_work()

    def plan(self, event: Split | Merge) -> Converting:
        """What the event would begin. Raises IllegalEvent if it can not."""
        return self._controller.plan(self._effects.now(), event)

    def reclaims(self, start: bytes) -> dict[bytes, list[Reclaim]]:
        """Of each prefix whose name begins so, what would be deleted, and where."""
        return self._controller.reclaims(start)

    def command(
        self, event: Split | Merge | Drain | Undrain | Hold | ReclaimPrefix
    ) -> list[ControlCommand]:
        """Let the event happen; what the controller commanded at once.

        Raises IllegalEvent, and then nothing happened.
        """
        commands = self._controller.step(self._effects.now(), event)
        self._carry_out(commands)
        self._drain()
        return commands

    def audit(self, ranks: Iterable[int], ended: Ended) -> None:
        """Have these ranks say what they hold; ``ended`` is told of each that has."""
        for rank in ranks:
            self._audits.begin(rank, ended)
            self._effects.send(rank, ReportBlocks())

    # --- what the node shows

    def snapshot(self) -> dict[str, Any]:
        """The controller's view, with what leads and answers know of requests, ranks of copies."""
        view = self._controller.snapshot(self._effects.now())
        placed = {request["request"]: request for request in view["requests"]}
        view["requests"] = [
            entry.show(placed.get(name, {}), self._lead_of(entry))
            for name, entry in self._requests.items()
        ]
        copies = self._transfers.snapshot()
        view["transfers"] = [{**t, **copies.get(t["transfer"], {})} for t in view["transfers"]]
        return view

    def idle(self) -> bool:
        """Everything is back to its base line: no request, no reservation, no step."""
        acting = bool(self._requests) or not self._leads.idle() or not self._transfers.idle()
        return not acting and self._controller.idle()

    # --- the loop

    def _post(self, event: ControlEvent) -> None:
        self._events.append(event)
        self._drain()

    def _drain(self) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            while self._events:
                event = self._events.popleft()
                try:
                    commands = self._controller.step(self._effects.now(), event)
                except IllegalEvent as error:
                    self._effects.illegal(event, str(error))
                else:
                    self._carry_out(commands)
        finally:
            self._busy = False

    def _carry_out(self, commands: list[ControlCommand]) -> None:
        for command in commands:
            match command:
                case AdoptWorker():
                    message = Adopt(command.term, command.epoch, command.degree, command.base)
                    for rank in range(command.base, command.base + command.degree):
                        self._effects.send(rank, message)
                case Park():
                    for rank in range(command.base, command.base + command.degree):
                        self._effects.send(rank, command)
                case Replicate():
                    self._act_transfers(self._transfers.start(self._effects.now(), command))
                case CancelTransfer():
                    name = (command.term, command.transfer)
                    self._act_transfers(self._transfers.cancel(*name))
                case Reclaim():
                    self._act_transfers(delete(command))
                case AskBlocks():
                    self._effects.send(command.rank, ReportBlocks())
                case DrainWorker():
                    self._drain_lead(command)
                case Resume():
                    lead = self._leads[command.worker]
                    self._act_lead(lead.resume(self._effects.now()))
                case Exposed():
                    self._leads.open(command)
                case Withdrawn():
                    self._leads.close(command.worker)
                case Placed():
                    self._tell(command.request, Answering.on_placed, command)
                case Dispatch():
                    self._dispatch(command)
                case Reject():
                    self._tell(command.request, Answering.on_reject, command)
                case Abort():
                    self._abort(command.worker, command.request)
                case Lost():
                    self._tell(command.request, Answering.on_lost, command.attempt, command.reason)
            self._effects.report(command)

    def _drain_lead(self, command: DrainWorker) -> None:
        lead = self._leads[command.worker]
        now = self._effects.now()
        self._act_lead(lead.drain(now, command.operation, command.patience_s))

    def _dispatch(self, dispatch: Dispatch) -> None:
        entry = self._requests.get(dispatch.request)
        if entry is None:  # its client left a moment ago
            self._events.append(Done(dispatch.request, dispatch.attempt))
            return
        now = self._effects.now()
        self._act(dispatch.request, entry.answering.on_dispatch(now, dispatch))

    # --- carrying out the machines' commands

    def _tell(
        self,
        request: str,
        event: Callable[Concatenate[Answering, Event], list[AnsweringCommand]],
        *values: Event.args,
        **named: Event.kwargs,
    ) -> None:
        """Tell a request's machine what happened. A request that is over has no machine."""
        entry = self._requests.get(request)
        if entry is not None:
            self._act(request, event(entry.answering, *values, **named))

    def _act(self, request: str, commands: list[AnsweringCommand]) -> None:
        for command in commands:
            match command:
                case Emit():
                    self._effects.emit(request, command.event)
                case SendRank():
                    self._effects.send(command.rank, command.message)
                case AdmitToLead():
                    self._admit(command)
                case AbortAtLead():
                    self._abort(command.worker, request)
                case Resubmit():
                    entry = self._requests[command.request]
                    self._events.append(entry.resubmit(command.attempt, self._effects.chain))
                case Over():
                    self._requests.pop(request, None)
                case Cancel() | Done():
                    self._events.append(command)

    def _act_lead(self, commands: list[LeadCommand]) -> None:
        now = self._effects.now()
        for command in commands:
            match command:
                case SendRank():
                    self._effects.send(command.rank, command.message)
                case FirstToken():
                    self._tell(command.request, Answering.on_first_token, now, command)
                case RunFailed():
                    self._tell(command.request, Answering.on_prefill_failed, command.reason)
                case PrefillDone():
                    self._events.append(command)
                    self._tell(command.request, Answering.on_prefill_done, now, command)
                case HandedOff():
                    self._events.append(command)
                    self._tell(command.request, Answering.on_handed_off)
                case Drained():
                    self._events.append(command)
                case RoomMissing() | Returned():
                    self._events.append(command)
                    self._tell(command.request, Answering.on_returned)

    def _act_transfers(self, commands: Sequence[TransferCommand]) -> None:
        for command in commands:
            if isinstance(command, SendRank):
                self._effects.send(command.rank, command.message)
            else:
                self._effects.report(command)
                self._events.append(command)

    def _admit(self, command: AdmitToLead) -> None:
        prefill = self._requests[command.dispatch.request].prefill(command)
        lead = self._leads[command.dispatch.worker]
        self._act_lead(lead.admit(self._effects.now(), prefill))

    def _abort(self, worker: str, request: str) -> None:
        lead = self._leads.of_worker(worker)
        if lead is not None:
            self._act_lead(lead.abort(self._effects.now(), request))

    # --- losses

    def _prefill_rank_gone(self, rank: int) -> None:
        self._audits.lose(rank)
        for request in self._leads.lose(rank):
            self._tell(request, Answering.on_lead_gone)

    def _decode_rank_gone(self, rank: int) -> None:
        for request, entry in list(self._requests.items()):
            self._act(request, entry.answering.on_decode_rank_gone(rank))
        for lead in self._leads:
            self._act_lead(lead.lose_decode_rank(self._effects.now(), rank))

    def _lead_of(self, entry: Accepted | None) -> Lead | None:
        """Who runs the request."""
        dispatch = entry.answering.dispatch if entry is not None else None
        return self._leads.of_worker(dispatch.worker) if dispatch is not None else None
