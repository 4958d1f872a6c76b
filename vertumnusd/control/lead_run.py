"""One request on its worker, and what a lead says about it.

    admitted ──► reserving ──► ready ──► running ──► handing off ──► over
        │            │           │          │             │
        └────────────┴──── aborted or given back ─────────┘

``Run`` keeps what the lead knows of a request and writes the messages about it; ``lead.py`` decides
when they are sent.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from vertumnusd.control.prefill_time import PrefillTime
from vertumnusd.layout import interleave, rotation
from vertumnusd.messages import (
    HASH_BYTES,
    Begin,
    Discard,
    Dispatch,
    PrefillDone,
    Pull,
    Release,
    Reserve,
    Reserved,
    ReserveFailed,
    Returned,
    RoomMissing,
    Sampling,
    Step,
    StepDone,
    ToRank,
)


class Phase(enum.Enum):
    ADMITTED = "admitted"
    RESERVING = "reserving"
    READY = "ready"
    RUNNING = "running"
    HANDING_OFF = "handing off"


class Ending(enum.Enum):
    """Why a run ends before its time, once nothing of it is under way any more."""

    ABORTED = "aborted"
    RETURNED = "returned"
    REPEATED = "repeated"  # as another run, with blocks reserved anew: these may be spoiled


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


@dataclass(frozen=True, slots=True)
class Geometry:
    """The worker that a lead leads, how its requests are cut, and how long they take."""

    term: int
    epoch: int
    ranks: range
    block_tokens: int
    layers: int
    prefill_time: PrefillTime

    def predict_s(self, uncached_tokens: int, cached_tokens: int) -> float:
        return self.prefill_time.predict_s(len(self.ranks), uncached_tokens, cached_tokens)

    def to_ranks(self, message: ToRank) -> list[SendRank]:
        return [SendRank(rank, message) for rank in self.ranks]


@dataclass(slots=True, eq=False)
class Run:
    """A request from its admission until its worker owes it nothing."""

    prefill: Prefill
    geometry: Geometry
    alone: bool = False  # shares no step
    phase: Phase = Phase.ADMITTED
    ending: Ending | None = None
    replies: dict[int, Reserved | ReserveFailed] = field(default_factory=dict)
    cached_tokens: int = 0
    block_ids: bytes = b""
    next_layer: int = 0
    done_layer: int = 0
    steps_out: int = 0  # steps that the ranks have not finished
    bypassed_s: float = 0.0  # predicted time of what came later and ran before it
    elapsed_s: dict[int, float] = field(default_factory=dict)  # computing so far, by rank
    expected_s: float = 0.0  # Ê of the steps done
    pulling: int = 0  # pulls sent and not acknowledged
    token: int | None = None  # that one rank has drawn
    reported: bool = False  # PrefillDone was sent

    @property
    def request(self) -> str:
        return self.prefill.dispatch.request

    @property
    def chain(self) -> bytes:
        return self.prefill.chain

    @property
    def input_tokens(self) -> int:
        return self.prefill.input_tokens

    @property
    def reserved(self) -> bool:
        """What is cached for it is known, and pinned."""
        return self.phase in (Phase.READY, Phase.RUNNING)

    @property
    def begun(self) -> bool:
        return self.phase is Phase.RUNNING

    @property
    def home(self) -> range:
        """The ranks of its span."""
        base = self.prefill.dispatch.home_base
        return range(base, base + self.prefill.dispatch.home_ranks)

    @property
    def also_kept(self) -> list[range]:
        """The ranks of other homes that are to keep its blocks, too."""
        if not (self.prefill.keep and self.prefill.chain):
            return []
        width = len(self.home)
        return [range(base, base + width) for base in self.prefill.dispatch.keep_homes]

    @property
    def answered(self) -> bool:
        """All ranks that were asked to reserve have answered."""
        return len(self.replies) == len(self.home) * (1 + len(self.also_kept))

    @property
    def blocks(self) -> int:
        return -(-self.prefill.input_tokens // self.geometry.block_tokens)

    @property
    def max_cached(self) -> int:
        """Blocks that may come from the cache: at least one token is computed."""
        return (self.prefill.input_tokens - 1) // self.geometry.block_tokens

    @property
    def uncached_tokens(self) -> int:
        return self.prefill.input_tokens - self.cached_tokens

    @property
    def can_step(self) -> bool:
        """It has layers left and may run them."""
        return self.reserved and self.ending is None and self.next_layer < self.geometry.layers

    @property
    def paused(self) -> bool:
        """Its hidden states wait on the ranks while something else runs."""
        return self.phase is Phase.RUNNING and self.can_step and not self.steps_out

    @property
    def settled(self) -> bool:
        """Nothing is under way: no step, no pull, no reservation."""
        reserving = self.phase is Phase.RESERVING and not self.answered
        return not (self.steps_out or self.pulling or reserving)

    # --- time

    @property
    def prefill_s(self) -> float:
        """Time of the slowest rank. Not the sum of each step's slowest: steps overlap."""
        return max(self.elapsed_s.values(), default=0.0)

    @property
    def predicted_s(self) -> float:
        """Ê of the whole prefill, made from what the ranks really hold.

        Were it the controller's, a prefix evicted since would make one endless step out of many
        short ones.
        """
        return self.geometry.predict_s(self.uncached_tokens, self.cached_tokens)

    @property
    def service_s(self) -> float:
        """Time of the whole prefill: as predicted, times the pace measured on it so far."""
        return self.predicted_s * (self.prefill_s / self.expected_s if self.expected_s else 1.0)

    @property
    def layer_s(self) -> float:
        return self.service_s / self.geometry.layers

    @property
    def remaining_s(self) -> float:
        """Time of the layers that were not given to the ranks yet."""
        return self.layer_s * (self.geometry.layers - self.next_layer)

    # --- reservation

    def reserve(self) -> list[SendRank]:
        """Ask the ranks of the home for the blocks; homes that keep them too, for whole ones."""
        self.phase = Phase.RESERVING
        complete = len(self.prefill.chain) // HASH_BYTES
        homes = [(self.home, self.blocks), *((home, complete) for home in self.also_kept)]
        return [
            SendRank(rank, self._reserve(home, blocks)) for home, blocks in homes for rank in home
        ]

    def _reserve(self, home: range, blocks: int) -> Reserve:
        return Reserve(
            self.geometry.term,
            self.geometry.epoch,
            self.request,
            self.prefill.chain,
            blocks,
            self.max_cached,
            home.start,
            len(home),
            self.prefill.keep,
        )

    @property
    def refused(self) -> bool:
        """A rank of the home has no room."""
        return any(isinstance(self.replies[rank], ReserveFailed) for rank in self.home)

    def take_blocks(self) -> list[SendRank]:
        """All ranks of the home have reserved; the cached prefix is what all of them hold.

        Homes that should have kept the blocks too, but have no room or less of a prefix, let go.
        """
        replies = [r for r in map(self.replies.get, self.home) if isinstance(r, Reserved)]
        cached = min(self.max_cached, *(r.first_missing for r in replies))
        self.cached_tokens = cached * self.geometry.block_tokens
        self.block_ids = interleave(
            {r.rank: r.block_ids for r in replies}, self.blocks, self.home.start, self._turn
        )
        self.phase = Phase.READY
        without = [home for home in self.also_kept if not self._has(home, cached)]
        released = [command for home in without for command in self._release(home)]
        for command in released:
            del self.replies[command.rank]
        return released

    def _has(self, home: range, cached: int) -> bool:
        """Whether the home has reserved, and holds so many leading blocks."""
        replies = [self.replies[rank] for rank in home]
        return all(isinstance(r, Reserved) and r.first_missing >= cached for r in replies)

    def release(self) -> list[SendRank]:
        return self._release(list(self.replies))

    def _release(self, ranks: Iterable[int]) -> list[SendRank]:
        """Those of these ranks that have reserved let go."""
        return [
            SendRank(rank, Release(self.request))
            for rank in ranks
            if isinstance(self.replies[rank], Reserved)
        ]

    # --- the rest of its life

    def begin(self) -> list[SendRank]:
        self.phase = Phase.RUNNING
        prefill = self.prefill
        message = Begin(
            self.geometry.term,
            self.geometry.epoch,
            self.request,
            prefill.tokens[4 * self.cached_tokens :],
            self.cached_tokens,
            self.block_ids,
            self.home.start,
            len(self.home),
            self._turn,
            prefill.sampling,
            prefill.position,
        )
        return self.geometry.to_ranks(message)

    def discard(self) -> list[SendRank]:
        geometry = self.geometry
        return geometry.to_ranks(Discard(geometry.term, geometry.epoch, self.request))

    def pull(self, step: Step) -> list[SendRank]:
        """Have the decode rank, if there is one, copy the layers of a step that is done."""
        rank = self.prefill.dispatch.decode_rank
        if rank < 0:
            return []
        self.pulling += 1
        message = Pull(
            self.request,
            step.first_layer,
            step.last_layer,
            self.block_ids,
            self.home.start,
            len(self.home),
            self._turn,
        )
        return [SendRank(rank, message)]

    def note_done(self, reply: StepDone) -> None:
        """A rank is through with a step of this request."""
        self.elapsed_s[reply.rank] = self.elapsed_s.get(reply.rank, 0.0) + reply.elapsed_s
        self.token = reply.drawn.get(self.request, self.token)

    def first_token(self) -> list[FirstToken]:
        """What was drawn, once all ranks are through with the last layer."""
        if self.token is None or self.done_layer < self.geometry.layers:
            return []
        return [FirstToken(self.request, self.token, self.cached_tokens, self.prefill_s)]

    def report(self) -> PrefillDone:
        self.reported = True
        attempt = self.prefill.dispatch.attempt
        times_s = (self.prefill_s, self.expected_s)
        return PrefillDone(self.request, attempt, self.cached_tokens, *times_s)

    def room_missing(self) -> RoomMissing:
        dispatch = self.prefill.dispatch
        return RoomMissing(self.request, dispatch.attempt, dispatch.worker)

    def returned(self) -> Returned:
        dispatch = self.prefill.dispatch
        return Returned(self.request, dispatch.attempt, dispatch.worker)

    @property
    def _turn(self) -> int:
        return rotation(self.prefill.chain, len(self.home))
