"""The life of one request at its gateway, from submission to its one answer.

    waiting ──Dispatch──► prefilling ──HandedOff──► decoding ──► winding down ──► over
       ▲                                                              │
       └──────────────── submit again (a rank was lost) ◄─────────────┘

The answer ends exactly once (``Finished``, ``Failed``, or the client left). What other parts still
hold for the request is wound down afterwards, in this order: the prefill ranks (``HandedOff`` tells
when they owe nothing), then the decode rank (``Closed``), then the controller (``Done``). A request
whose rank was lost is submitted again as its prompt plus the tokens already sent, so that no token
is sent twice.

Pure: ``now`` and events in, commands out.
"""

from __future__ import annotations

from dataclasses import dataclass

from vertumnusd.control.lead import FirstToken, SendRank
from vertumnusd.messages import (
    Answer,
    Cancel,
    Close,
    Dispatch,
    Done,
    Failed,
    Finished,
    Generate,
    Open,
    Placed,
    PrefillDone,
    Reject,
    Sampling,
    Token,
)

MAX_ATTEMPTS = 3

STATUS_OF_REJECTION = {"context_length_exceeded": 400, "server_is_overloaded": 503}


@dataclass(frozen=True, slots=True)
class Emit:
    """Command: the next event of the answer."""

    event: Answer


@dataclass(frozen=True, slots=True)
class AdmitToLead:
    """Command: hand the request to the lead of the worker that it was dispatched to."""

    dispatch: Dispatch
    position: int


@dataclass(frozen=True, slots=True)
class AbortAtLead:
    """Command: the prefill of this request is not wanted any more."""

    request: str
    worker: str


@dataclass(frozen=True, slots=True)
class Resubmit:
    """Command: submit prompt plus ``emitted`` tokens again, as attempt ``attempt``."""

    request: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Over:
    """Command: forget the request."""

    request: str


AnsweringCommand = Emit | AdmitToLead | AbortAtLead | Resubmit | Over | SendRank | Cancel | Done


class Answering:
    """State of one request at its gateway. Every method takes events, and returns commands."""

    def __init__(
        self,
        *,
        request: str,
        input_tokens: int,
        max_new_tokens: int,
        sampling: Sampling,
        stop_tokens: tuple[int, ...],
        arrived: float,
    ) -> None:
        self.request = request
        self.attempt = 0
        self.emitted: list[int] = []
        self.dispatch: Dispatch | None = None
        self._input_tokens = input_tokens
        self._max_new_tokens = max_new_tokens
        self._sampling = sampling
        self._stop_tokens = stop_tokens
        self._arrived = arrived
        self._dispatched = 0.0
        self._prefill_owed = False
        self._decode_open = False
        self._stale_closes: list[int] = []  # ranks that still have to confirm an earlier close
        self._ended = False
        self._lost = False
        self._cached_tokens = 0
        self._prefill_s = 0.0
        self._ttft_s = 0.0
        self._handoff_ttft_s = 0.0

    @property
    def tokens_left(self) -> int:
        return max(0, self._max_new_tokens - len(self.emitted))

    @property
    def ttft_s(self) -> float | None:
        """From the request's arrival to its first token, once that has come."""
        return self._ttft_s if self.emitted else None

    @property
    def phase(self) -> str:
        """One word for tables."""
        if self._ended or self._lost:
            return "winding down"
        if self.dispatch is None:
            return "waiting"
        return "prefilling" if self._prefill_owed else "decoding"

    # --- from the controller

    def on_placed(self, placed: Placed) -> list[AnsweringCommand]:
        return [] if self._ended else [Emit(placed)]

    def on_dispatch(self, now: float, dispatch: Dispatch) -> list[AnsweringCommand]:
        if self._ended or dispatch.attempt != self.attempt:
            return [Done(self.request, dispatch.attempt)]
        self.dispatch = dispatch
        self._prefill_owed = True
        self._dispatched = now
        commands: list[AnsweringCommand] = []
        if dispatch.decode_rank >= 0:
            self._decode_open = True
            message = Open(self.request, dispatch.decode_blocks, self._sampling, self._stop_tokens)
            commands.append(SendRank(dispatch.decode_rank, message))
        return [*commands, AdmitToLead(dispatch, len(self.emitted))]

    def on_reject(self, reject: Reject) -> list[AnsweringCommand]:
        if self._ended or reject.attempt != self.attempt:
            return []
        self._ended = True
        status = STATUS_OF_REJECTION.get(reject.code, 500)
        failed = Failed(status, reject.code, reject.reason, reject.retry_after_s)
        return [Emit(failed), Over(self.request)]

    def on_lost(self, attempt: int, reason: str) -> list[AnsweringCommand]:
        """The controller forgot this attempt because a rank of it is gone."""
        if attempt != self.attempt or self._lost:
            return []
        self._lost = True
        if not self._ended and attempt + 1 >= MAX_ATTEMPTS:
            return self._fail(500, "server_error", f"lost {MAX_ATTEMPTS} times, last: {reason}")
        return self._wind_down()

    # --- from the lead

    def on_first_token(self, now: float, first: FirstToken) -> list[AnsweringCommand]:
        if self._ended or self._lost or self._max_new_tokens == 0:
            return []
        self._cached_tokens = first.cached_tokens
        self._prefill_s = first.prefill_s
        return self._emit_token(now, first.token)

    def on_prefill_done(self, now: float, done: PrefillDone) -> list[AnsweringCommand]:
        self._cached_tokens = done.cached_tokens
        self._prefill_s = done.prefill_s
        if self._ended or self._lost or self._max_new_tokens > 0:
            return []
        self._ttft_s = self._handoff_ttft_s = now - self._arrived
        return self._finish(now, "prefilled")

    def on_prefill_failed(self, reason: str) -> list[AnsweringCommand]:
        return [] if self._ended else self._fail(500, "server_error", reason)

    def on_returned(self) -> list[AnsweringCommand]:
        """The lead gave the request back before it began (no room): it waits again."""
        self._prefill_owed = False
        dispatch = self.dispatch
        self.dispatch = None
        if self._ended or self._lost:
            self.dispatch = dispatch
            return self._wind_down()
        if self._decode_open and dispatch is not None:
            self._decode_open = False
            self._stale_closes.append(dispatch.decode_rank)
            return [SendRank(dispatch.decode_rank, Close(self.request))]
        return []

    def on_handed_off(self) -> list[AnsweringCommand]:
        self._prefill_owed = False
        if self._ended or self._lost:
            return self._wind_down()
        if not self._decode_open:
            return []  # the decode rank died meanwhile; ``Lost`` follows
        assert self.dispatch is not None
        generate = Generate(
            self.request,
            self.emitted[-1],
            self._input_tokens + len(self.emitted) - 1,
            len(self.emitted) - 1,
            self.tokens_left,
        )
        return [SendRank(self.dispatch.decode_rank, generate)]

    # --- from the decode rank

    def on_drawn(self, now: float, token: int) -> list[AnsweringCommand]:
        """The rank need not say that it finished: the same rule ends the answer here."""
        return [] if self._ended or self._lost else self._emit_token(now, token)

    def on_decode_failed(self, reason: str) -> list[AnsweringCommand]:
        return [] if self._ended else self._fail(500, "server_error", reason)

    def on_closed(self, rank: int) -> list[AnsweringCommand]:
        if rank in self._stale_closes:
            self._stale_closes.remove(rank)
            return []
        self._decode_open = False
        return self._wind_down() if self._ended or self._lost else []

    # --- from the node

    def on_client_left(self) -> list[AnsweringCommand]:
        if self._ended:
            return []
        self._ended = True
        return [Cancel(self.request), *self._wind_down()]

    def on_lead_gone(self) -> list[AnsweringCommand]:
        """The worker's ranks died; the controller will say ``Lost``."""
        if not self._prefill_owed:
            return []
        self._prefill_owed = False
        return self._wind_down() if self._ended or self._lost else []

    def on_decode_rank_gone(self, rank: int) -> list[AnsweringCommand]:
        self._stale_closes = [r for r in self._stale_closes if r != rank]
        if not self._decode_open or self.dispatch is None or self.dispatch.decode_rank != rank:
            return []
        self._decode_open = False
        return self._wind_down() if self._ended or self._lost else []

    # --- endings

    def _emit_token(self, now: float, token: int) -> list[AnsweringCommand]:
        since_arrival = now - self._arrived
        if not self.emitted:
            self._ttft_s = since_arrival
        if len(self.emitted) < 2:
            self._handoff_ttft_s = since_arrival
        self.emitted.append(token)
        commands: list[AnsweringCommand] = [Emit(Token(token))]
        if token in self._stop_tokens:
            return commands + self._finish(now, "stop")
        if not self.tokens_left:
            return commands + self._finish(now, "length")
        return commands

    def _finish(self, now: float, reason: str) -> list[AnsweringCommand]:
        assert self.dispatch is not None
        self._ended = True
        finished = Finished(
            reason=reason,
            worker=self.dispatch.worker,
            degree=self.dispatch.degree,
            input_tokens=self._input_tokens,
            cached_tokens=self._cached_tokens,
            output_tokens=len(self.emitted),
            queue_s=self._dispatched - self._arrived,
            predicted_s=self.dispatch.predicted_s,
            prefill_s=self._prefill_s,
            ttft_s=self._ttft_s,
            handoff_ttft_s=self._handoff_ttft_s,
            total_s=now - self._arrived,
        )
        return [Emit(finished), *self._wind_down()]

    def _fail(self, status: int, code: str, reason: str) -> list[AnsweringCommand]:
        self._ended = True
        return [Emit(Failed(status, code, reason)), *self._wind_down()]

    def _wind_down(self) -> list[AnsweringCommand]:
        """Give back what is held, one holder after the other, then end or submit again."""
        if self._prefill_owed:
            assert self.dispatch is not None
            return [AbortAtLead(self.request, self.dispatch.worker)]
        if self._decode_open:
            assert self.dispatch is not None
            return [SendRank(self.dispatch.decode_rank, Close(self.request))]
        if self._ended:
            return [Done(self.request, self.attempt), Over(self.request)]
        self._lost = False
        self.dispatch = None
        self.attempt += 1
        return [Resubmit(self.request, self.attempt)]
