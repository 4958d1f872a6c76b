"""The lead of one worker: turns the requests dispatched to it into numbered steps.

    admitted ──► reserving ──► ready ──► running ──► handing off ──► over
        │            │                      │             │
        └────────────┴────────abort─────────┴─────────────┘

* Reserve: every rank of the home pins what it holds of the chain and sets room aside; the cached
  prefix is what all of them hold. The request one ahead reserves early, unless it shares its
  first block with one still running: then it waits, to find those blocks in the cache.
* Steps are layer ranges of about ``step_s`` predicted seconds. One step stays queued ahead of the
  ranks, so they never wait for the lead; aborts act between steps.
* Hand-off: after each step the decode rank pulls that step's layers. The home's blocks stay pinned
  until the last pull is acknowledged.

Pure: events in, commands out. The controller is not needed to finish what was admitted.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field

from vertumnusd.control.prefill_time import PrefillTime
from vertumnusd.layout import interleave, rotation
from vertumnusd.messages import (
    HASH_BYTES,
    Begin,
    Discard,
    Dispatch,
    HandedOff,
    PrefillDone,
    Pull,
    Pulled,
    Release,
    Reserve,
    Reserved,
    ReserveFailed,
    RoomMissing,
    Sampling,
    Step,
    StepDone,
    StepFailed,
    ToRank,
)

STEPS_AHEAD = 1  # steps queued at the ranks behind the running one
STUCK_FACTOR = 5.0  # a step this many times slower than predicted is stuck


class Phase(enum.Enum):
    ADMITTED = "admitted"
    RESERVING = "reserving"
    READY = "ready"
    RUNNING = "running"
    HANDING_OFF = "handing off"


@dataclass(frozen=True, slots=True)
class Prefill:
    """What a lead needs to run one dispatched request."""

    dispatch: Dispatch
    tokens: bytes  # u32, the whole input
    chain: bytes
    sampling: Sampling
    position: int  # answer index of the first token to draw
    keep: bool

    @property
    def input_tokens(self) -> int:
        return len(self.tokens) // 4


@dataclass(frozen=True, slots=True)
class SendRank:
    """Command: put ``message`` into the outbox of ``rank``."""

    rank: int
    message: ToRank


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Command: the prefill drew the request's next token, after ``prefill_s`` of computing."""

    request: str
    token: int
    cached_tokens: int
    prefill_s: float


@dataclass(frozen=True, slots=True)
class RunFailed:
    """Command: this request failed by itself (no memory for a step, say)."""

    request: str
    reason: str


LeadCommand = SendRank | FirstToken | RunFailed | PrefillDone | HandedOff | RoomMissing
LeadEvent = Reserved | ReserveFailed | StepDone | StepFailed | Pulled


@dataclass(slots=True)
class _Run:
    prefill: Prefill
    home: range  # ranks of the home
    blocks: int
    max_cached: int  # blocks that may come from the cache: at least one token is computed
    phase: Phase = Phase.ADMITTED
    replies: dict[int, Reserved | ReserveFailed] = field(default_factory=dict)
    cached_tokens: int = 0
    block_ids: bytes = b""
    next_layer: int = 0
    done_layer: int = 0
    elapsed_s: dict[int, float] = field(default_factory=dict)  # computing so far, by rank
    pulling: int = 0  # pulls sent and not acknowledged
    drew: bool = False
    reported: bool = False  # PrefillDone was sent
    aborted: bool = False

    @property
    def request(self) -> str:
        return self.prefill.dispatch.request

    @property
    def prefill_s(self) -> float:
        """Time of the slowest rank. Not the sum of each step's slowest: steps overlap."""
        return max(self.elapsed_s.values(), default=0.0)


@dataclass(slots=True)
class _Outstanding:
    step: Step
    waiting: set[int]  # ranks that have not finished it
    predicted_s: float
    running_since: float  # when it was issued, or the step before it ended


class Lead:
    """One worker's lead. Feed it with ``admit``, ``abort``, ``step``, ``lose_decode_rank``."""

    def __init__(
        self,
        *,
        term: int,
        epoch: int,
        degree: int,
        base: int,
        home_ranks: int,
        block_tokens: int,
        layers: int,
        prefill_time: PrefillTime,
        step_s: float,
        progress_timeout_s: float,
    ) -> None:
        self.term = term
        self.epoch = epoch
        self.ranks = range(base, base + degree)
        self._home_ranks = home_ranks
        self._block_tokens = block_tokens
        self._layers = layers
        self._prefill_time = prefill_time
        self._step_s = step_s
        self._progress_timeout_s = progress_timeout_s
        self._seq = 0
        self._runs: dict[str, _Run] = {}  # in the order of admission
        self._outstanding: deque[_Outstanding] = deque()

    # --- events

    def admit(self, now: float, prefill: Prefill) -> list[LeadCommand]:
        """Take over a dispatched request; it runs after those admitted before it."""
        request = prefill.dispatch.request
        if request in self._runs:
            raise ValueError(f"request {request} is already on this worker")
        base = prefill.dispatch.home_base
        self._runs[request] = _Run(
            prefill=prefill,
            home=range(base, base + self._home_ranks),
            blocks=-(-prefill.input_tokens // self._block_tokens),
            max_cached=(prefill.input_tokens - 1) // self._block_tokens,
        )
        return self._advance(now)

    def abort(self, now: float, request: str) -> list[LeadCommand]:
        """Stop at the next step border. ``HandedOff`` tells when nothing is owed any more."""
        run = self._runs.get(request)
        if run is None or run.aborted:
            return []
        run.aborted = True
        commands: list[LeadCommand] = []
        if run.phase is Phase.RUNNING:
            commands += self._to_worker(Discard(self.term, self.epoch, request))
        return commands + self._settle(run) + self._advance(now)

    def lose_decode_rank(self, now: float, rank: int) -> list[LeadCommand]:
        """A decode rank died: nobody reads the blocks it was pulling."""
        commands: list[LeadCommand] = []
        for run in list(self._runs.values()):
            if run.prefill.dispatch.decode_rank == rank:
                run.pulling = 0
                commands += self.abort(now, run.request)
                if run.request in self._runs:
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

    # --- time

    def stuck_ranks(self, now: float) -> list[int]:
        """Ranks whose running step takes longer than any excuse; they should be killed."""
        if not self._outstanding:
            return []
        head = self._outstanding[0]
        patience_s = max(self._progress_timeout_s, STUCK_FACTOR * head.predicted_s)
        return sorted(head.waiting) if now - head.running_since > patience_s else []

    # --- what the node shows

    @property
    def requests(self) -> list[str]:
        return list(self._runs)

    def progress(self, request: str) -> tuple[int, int] | None:
        """Layers done and layers in all, for a request that is running."""
        run = self._runs.get(request)
        if run is None or run.phase is not Phase.RUNNING:
            return None
        return run.done_layer, self._layers

    # --- reservation

    def _reserve_next(self) -> list[LeadCommand]:
        commands: list[LeadCommand] = []
        unfinished_roots: set[bytes] = set()
        for run in self._runs.values():
            root = run.prefill.chain[:HASH_BYTES]
            if run.phase is Phase.ADMITTED and not run.aborted:
                if root and root in unfinished_roots:
                    continue
                run.phase = Phase.RESERVING
                message = Reserve(
                    self.term,
                    self.epoch,
                    run.request,
                    run.prefill.chain,
                    run.blocks,
                    run.max_cached,
                    run.home.start,
                    run.prefill.keep,
                )
                commands += [SendRank(rank, message) for rank in run.home]
            if run.phase is not Phase.HANDING_OFF:
                unfinished_roots.add(root)
        return commands

    def _on_reserve_reply(self, reply: Reserved | ReserveFailed) -> list[LeadCommand]:
        run = self._runs.get(reply.request)
        if run is None or run.phase is not Phase.RESERVING or reply.epoch != self.epoch:
            return []
        run.replies[reply.rank] = reply
        if len(run.replies) < len(run.home):
            return []
        if run.aborted:
            return self._settle(run)
        if any(isinstance(r, ReserveFailed) for r in run.replies.values()):
            del self._runs[run.request]
            dispatch = run.prefill.dispatch
            return [
                *self._release(run),
                RoomMissing(run.request, dispatch.attempt, dispatch.worker),
            ]
        self._take_blocks(run)
        run.phase = Phase.READY
        return []

    def _take_blocks(self, run: _Run) -> None:
        replies = [r for r in run.replies.values() if isinstance(r, Reserved)]
        cached = min(run.max_cached, *(r.first_missing for r in replies))
        run.cached_tokens = cached * self._block_tokens
        turn = rotation(run.prefill.chain, self._home_ranks)
        run.block_ids = interleave(
            {r.rank: r.block_ids for r in replies}, run.blocks, run.home.start, turn
        )

    # --- steps

    def _advance(self, now: float) -> list[LeadCommand]:
        commands = self._reserve_next()
        while len(self._outstanding) <= STEPS_AHEAD:
            run = self._next_to_step()
            if run is None:
                break
            if run.phase is Phase.READY:
                run.phase = Phase.RUNNING
                commands += self._begin(run)
            commands += self._issue_step(now, run)
        return commands

    def _next_to_step(self) -> _Run | None:
        """The first request with layers left; those behind it wait for their turn."""
        for run in self._runs.values():
            if run.aborted or run.phase is Phase.HANDING_OFF:
                continue
            if run.phase in (Phase.ADMITTED, Phase.RESERVING):
                return None
            if run.next_layer < self._layers:
                return run
        return None

    def _begin(self, run: _Run) -> list[LeadCommand]:
        prefill = run.prefill
        return self._to_worker(
            Begin(
                self.term,
                self.epoch,
                run.request,
                prefill.tokens[4 * run.cached_tokens :],
                run.cached_tokens,
                run.block_ids,
                run.home.start,
                rotation(prefill.chain, self._home_ranks),
                prefill.sampling,
                prefill.position,
            )
        )

    def _issue_step(self, now: float, run: _Run) -> list[LeadCommand]:
        per_layer_s = self._layer_s(run)
        layers = max(1, round(self._step_s / per_layer_s)) if per_layer_s > 0 else self._layers
        last = min(self._layers, run.next_layer + layers)
        self._seq += 1
        step = Step(self.term, self.epoch, self._seq, run.request, run.next_layer, last)
        predicted_s = per_layer_s * (last - run.next_layer)
        run.next_layer = last
        self._outstanding.append(_Outstanding(step, set(self.ranks), predicted_s, now))
        return self._to_worker(step)

    def _layer_s(self, run: _Run) -> float:
        """Time of one layer: as measured on this request, before that as predicted.

        The prediction is made anew from what the ranks really hold: were it the controller's, a
        prefix evicted since would make one endless step out of many short ones.
        """
        if run.done_layer:
            return run.prefill_s / run.done_layer
        uncached_tokens = run.prefill.input_tokens - run.cached_tokens
        predicted_s = self._prefill_time.predict_s(
            len(self.ranks), uncached_tokens, run.cached_tokens
        )
        return predicted_s / self._layers

    def _on_step_reply(self, now: float, reply: StepDone | StepFailed) -> list[LeadCommand]:
        entry = next((o for o in self._outstanding if o.step.seq == reply.seq), None)
        if entry is None or reply.epoch != self.epoch or reply.rank not in entry.waiting:
            return []
        entry.waiting.discard(reply.rank)
        run = self._runs.get(reply.request)
        commands: list[LeadCommand] = []
        if isinstance(reply, StepFailed):
            if run is not None and not run.aborted:
                commands.append(RunFailed(run.request, reply.reason))
                commands += self.abort(now, run.request)
        else:
            if run is not None:
                spent_s = run.elapsed_s.get(reply.rank, 0.0)
                run.elapsed_s[reply.rank] = spent_s + reply.elapsed_s
            if reply.first_token >= 0 and run is not None and not run.aborted and not run.drew:
                run.drew = True
                commands.append(
                    FirstToken(run.request, reply.first_token, run.cached_tokens, run.prefill_s)
                )
        if not entry.waiting:
            self._outstanding.remove(entry)
            if self._outstanding:
                self._outstanding[0].running_since = now
            if run is not None:
                commands += self._on_step_complete(run, entry)
        return commands

    def _on_step_complete(self, run: _Run, entry: _Outstanding) -> list[LeadCommand]:
        run.done_layer = entry.step.last_layer
        commands: list[LeadCommand] = []
        if not run.aborted and run.prefill.dispatch.decode_rank >= 0:
            commands += self._pull(run, entry.step)
        if run.done_layer == self._layers and not run.aborted:
            run.phase = Phase.HANDING_OFF
            commands.append(self._report(run))
        return commands + self._settle(run)

    # --- hand-off and end

    def _pull(self, run: _Run, step: Step) -> list[LeadCommand]:
        run.pulling += 1
        message = Pull(
            run.request,
            step.first_layer,
            step.last_layer,
            run.block_ids,
            run.home.start,
            rotation(run.prefill.chain, self._home_ranks),
        )
        return [SendRank(run.prefill.dispatch.decode_rank, message)]

    def _on_pulled(self, event: Pulled) -> list[LeadCommand]:
        run = self._runs.get(event.request)
        if run is None or run.pulling == 0:
            return []
        run.pulling -= 1
        return self._settle(run)

    def _settle(self, run: _Run) -> list[LeadCommand]:
        """End the run if nothing is owed: no step out, no pull out, no reservation pending."""
        if run.request not in self._runs:
            return []
        if not run.aborted and run.phase is not Phase.HANDING_OFF:
            return []
        if run.pulling or any(o.step.request == run.request for o in self._outstanding):
            return []
        if run.phase is Phase.RESERVING and len(run.replies) < len(run.home):
            return []
        del self._runs[run.request]
        commands: list[LeadCommand] = []
        if run.phase is not Phase.ADMITTED:
            commands += self._release(run)
        if not run.reported:
            commands.append(self._report(run))
        return [*commands, HandedOff(run.request, run.prefill.dispatch.attempt)]

    def _report(self, run: _Run) -> PrefillDone:
        run.reported = True
        attempt = run.prefill.dispatch.attempt
        return PrefillDone(run.request, attempt, run.cached_tokens, run.prefill_s)

    def _release(self, run: _Run) -> list[LeadCommand]:
        return [
            SendRank(rank, Release(run.request))
            for rank, reply in run.replies.items()
            if isinstance(reply, Reserved)
        ]

    def _to_worker(self, message: ToRank) -> list[LeadCommand]:
        return [SendRank(rank, message) for rank in self.ranks]
