"""The lead of one worker: turns the requests dispatched to it into numbered steps.

* Reserve: every rank of the home pins what it holds of the chain and sets room aside; the cached
  prefix is what all of them hold. Requests ahead reserve early, unless it pays to find in the
  cache what one before them is about to compute (``following.py``).
* Steps are layer ranges of about ``step_s`` predicted seconds, of the request or the pack of
  short ones that ``step_order.py`` chooses at each border. One step stays queued ahead of the
  ranks, so they never wait for the lead; aborts and pauses act between steps.
* Failures: a request that fails fails alone. If it shared its step, it is run once more by itself.
  The first token is shown when every rank is through with its step, as a rank that failed has
  spoiled what another one drew.
* Hand-off: after each step the decode rank pulls that step's layers. The home's blocks stay pinned
  until the last pull is acknowledged.
* Drain: what has not begun is given back at once, what has begun is finished; past the patience
  what is paused is given back as well. ``Drained`` when nothing is owed to anyone.

``lead_run.py`` draws the life of one request. Pure: events in, commands out. The controller is not
needed to finish what was admitted.
"""

from __future__ import annotations

from dataclasses import dataclass

from vertumnusd.control.following import follows
from vertumnusd.control.lead_run import (
    Ending,
    FirstToken,
    Geometry,
    Phase,
    Prefill,
    Run,
    RunFailed,
    SendRank,
)
from vertumnusd.control.outstanding import Outstanding, OutstandingStep
from vertumnusd.control.prefill_time import PrefillTime
from vertumnusd.control.step_order import (
    StepLimits,
    count_bypass,
    next_pack,
    pack_s,
    step_layers,
)
from vertumnusd.messages import (
    Drained,
    HandedOff,
    PrefillDone,
    Pulled,
    Reserved,
    ReserveFailed,
    Returned,
    RoomMissing,
    StepDone,
    StepFailed,
)

__all__ = ["FirstToken", "Lead", "LeadCommand", "Prefill", "RunFailed", "SendRank"]

LeadCommand = (
    SendRank | FirstToken | RunFailed | PrefillDone | HandedOff | RoomMissing | Returned | Drained
)
LeadEvent = Reserved | ReserveFailed | StepDone | StepFailed | Pulled


@dataclass(slots=True)
class _Drain:
    operation: int
    impatient_at: float  # from then on what is paused is given back
    over: bool = False  # Drained was said


class Lead:
    """One worker's lead. Feed it what happens; call ``tick`` when ``next_deadline`` has come."""

    def __init__(
        self,
        *,
        term: int,
        epoch: int,
        degree: int,
        base: int,
        block_tokens: int,
        layers: int,
        prefill_time: PrefillTime,
        limits: StepLimits,
        progress_timeout_s: float,
    ) -> None:
        self.term = term
        self.epoch = epoch
        self.ranks = range(base, base + degree)
        self._geometry = Geometry(term, epoch, self.ranks, block_tokens, layers, prefill_time)
        self._limits = limits
        self._runs: dict[str, Run] = {}  # in the order of admission
        self._outstanding = Outstanding(self._geometry, progress_timeout_s)
        self._drain: _Drain | None = None

    # --- events

    def admit(self, now: float, prefill: Prefill) -> list[LeadCommand]:
        """Take over a dispatched request; one that meets a drain is given back."""
        request = prefill.dispatch.request
        if request in self._runs:
            raise ValueError(f"request {request} is already on this worker")
        run = Run(prefill, self._geometry)
        if self._drain is not None:
            return [run.returned()]
        self._runs[request] = run
        return self._advance(now)

    def abort(self, now: float, request: str) -> list[LeadCommand]:
        """Stop at the next step border. ``HandedOff`` tells when nothing is owed any more."""
        run = self._runs.get(request)
        if run is None or run.ending is Ending.ABORTED:
            return []
        return [*self._end(run, Ending.ABORTED), *self._advance(now)]

    def lose_decode_rank(self, now: float, rank: int) -> list[LeadCommand]:
        """A decode rank died: nobody reads the blocks it was pulling."""
        commands: list[LeadCommand] = []
        for run in list(self._runs.values()):
            if run.prefill.dispatch.decode_rank == rank:
                run.pulling = 0
                commands += self.abort(now, run.request)
                commands += self._settle(run)
        return commands + self._advance(now)

    def step(self, now: float, event: LeadEvent) -> list[LeadCommand]:
        """A rank answered. Answers about requests this lead no longer knows are ignored."""
        match event:
            case Reserved() | ReserveFailed():
                commands = self._on_reserve_reply(event)
            case StepDone() | StepFailed():
                commands = self._on_step_reply(now, event)
            case Pulled():
                commands = self._on_pulled(event)
        return commands + self._advance(now)

    # --- drain

    def drain(self, now: float, operation: int, patience_s: float) -> list[LeadCommand]:
        """Take nothing more, and say ``Drained`` when nothing is owed; ``resume`` calls it off."""
        if self._drain is None or self._drain.operation != operation:
            self._drain = _Drain(operation, now + patience_s)
        commands: list[LeadCommand] = []
        for run in list(self._runs.values()):
            if run.phase in (Phase.ADMITTED, Phase.READY) and run.ending is None:
                commands += self._end(run, Ending.RETURNED)
        return commands + self._advance(now)

    def resume(self, now: float) -> list[LeadCommand]:
        """The worker serves on. What was given back stays so."""
        self._drain = None
        return self._advance(now)

    # --- time

    def next_deadline(self) -> float | None:
        """When to call ``tick``."""
        if self._drain is None or not any(run.paused for run in self._runs.values()):
            return None
        return self._drain.impatient_at

    def tick(self, now: float) -> list[LeadCommand]:
        return self._advance(now)

    def stuck_ranks(self, now: float) -> list[int]:
        """Ranks whose running step takes longer than any excuse; they should be killed."""
        return self._outstanding.stuck_ranks(now)

    # --- what the node shows

    @property
    def requests(self) -> list[str]:
        return list(self._runs)

    def progress(self, request: str) -> tuple[int, int] | None:
        """Layers done and layers in all, for a request that has begun."""
        run = self._runs.get(request)
        if run is None or run.phase is not Phase.RUNNING:
            return None
        return run.done_layer, self._geometry.layers

    # --- reservation

    def _reserve_next(self) -> list[LeadCommand]:
        commands: list[LeadCommand] = []
        ahead: list[Run] = []
        for run in self._runs.values():
            if run.phase is Phase.ADMITTED and not any(follows(run, each) for each in ahead):
                commands += run.reserve()
            if run.phase is not Phase.HANDING_OFF:
                ahead.append(run)
        return commands

    def _on_reserve_reply(self, reply: Reserved | ReserveFailed) -> list[LeadCommand]:
        run = self._runs.get(reply.request)
        if run is None or run.phase is not Phase.RESERVING or reply.epoch != self.epoch:
            return []
        run.replies[reply.rank] = reply
        if not run.answered:
            return []
        if run.ending is not None:
            return self._settle(run)
        if run.refused:
            del self._runs[run.request]
            return [*run.release(), run.room_missing()]
        commands: list[LeadCommand] = [*run.take_blocks()]
        return [*commands, *self._end(run, Ending.RETURNED)] if self._drain else commands

    # --- steps

    def _advance(self, now: float) -> list[LeadCommand]:
        """Whatever can go on now."""
        commands = self._give_back_paused(now)
        if self._drain is None:
            commands += self._reserve_next()
        while self._outstanding.has_room:
            pack = next_pack(list(self._runs.values()), self._limits)
            if not pack:
                break
            commands += self._issue_step(now, pack)
        return commands + self._say_drained()

    def _issue_step(self, now: float, pack: list[Run]) -> list[SendRank]:
        begins = [send for run in pack if run.phase is Phase.READY for send in run.begin()]
        layers = step_layers(pack, self._limits)
        share = len(layers) / (self._geometry.layers - layers.start)
        predicted_s = pack_s(pack) * share
        step = self._outstanding.issue(now, pack, layers, predicted_s)
        for run in pack:
            run.next_layer = layers.stop
            run.steps_out += 1
        count_bypass(list(self._runs.values()), pack, predicted_s)
        return [*begins, *self._geometry.to_ranks(step)]

    def _on_step_reply(self, now: float, reply: StepDone | StepFailed) -> list[LeadCommand]:
        entry = self._outstanding.of(reply)
        if entry is None:
            return []
        if isinstance(reply, StepFailed):
            return self._on_step_failed(entry, reply)
        for run in entry.pack:
            run.note_done(reply)
        if self._outstanding.finish(now, entry, reply.rank):
            return [c for run in entry.pack for c in self._on_step_complete(run, entry)]
        return []

    def _on_step_failed(self, entry: OutstandingStep, reply: StepFailed) -> list[LeadCommand]:
        """What failed among others may have been their fault: it gets one more chance, alone."""
        run = self._runs.get(reply.request)
        if run is None or run.ending in (Ending.ABORTED, Ending.REPEATED):
            return []
        if run.ending is None and len(entry.pack) > 1 and entry.step.first_layer == 0:
            return self._end(run, Ending.REPEATED)
        return [RunFailed(run.request, reply.reason), *self._end(run, Ending.ABORTED)]

    def _on_step_complete(self, run: Run, entry: OutstandingStep) -> list[LeadCommand]:
        run.steps_out -= 1
        run.done_layer = entry.step.last_layer
        run.expected_s += entry.expected_s
        if run.ending is not None:
            return self._settle(run)
        commands: list[LeadCommand] = [*run.first_token(), *run.pull(entry.step)]
        if run.done_layer == self._geometry.layers:
            run.phase = Phase.HANDING_OFF
            commands.append(run.report())
        return commands + self._settle(run)

    # --- ends

    def _end(self, run: Run, ending: Ending) -> list[LeadCommand]:
        """Let the run end as soon as nothing of it is under way. An abort outdoes the others."""
        commands: list[LeadCommand] = []
        if run.phase is Phase.RUNNING and run.ending is None:
            commands += run.discard()
        run.ending = ending
        return commands + self._settle(run)

    def _on_pulled(self, event: Pulled) -> list[LeadCommand]:
        run = self._runs.get(event.request)
        if run is None or run.pulling == 0:
            return []
        run.pulling -= 1
        return self._settle(run)

    def _settle(self, run: Run) -> list[LeadCommand]:
        """Forget a run that has ended, once nothing of it is under way."""
        if run.request not in self._runs or not run.settled:
            return []
        if run.ending is None and run.phase is not Phase.HANDING_OFF:
            return []
        commands: list[LeadCommand] = [*run.release()]
        if run.ending is Ending.REPEATED and self._drain is None:
            self._runs[run.request] = Run(run.prefill, self._geometry, alone=True)
            return commands
        del self._runs[run.request]
        if run.ending in (Ending.RETURNED, Ending.REPEATED):
            return [*commands, run.returned()]
        if not run.reported:
            commands.append(run.report())
        return [*commands, HandedOff(run.request, run.prefill.dispatch.attempt)]

    def _give_back_paused(self, now: float) -> list[LeadCommand]:
        commands: list[LeadCommand] = []
        if self._drain is not None and now >= self._drain.impatient_at:
            for run in list(self._runs.values()):
                if run.paused:
                    commands += self._end(run, Ending.RETURNED)
        return commands

    def _say_drained(self) -> list[LeadCommand]:
        drain = self._drain
        if drain is None or drain.over or self._runs:
            return []
        drain.over = True
        return [Drained(self.term, drain.operation, len(self.ranks), self.ranks.start)]
