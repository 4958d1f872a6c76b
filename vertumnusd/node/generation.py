"""One answer: from the node's tokens to text, cut at stop strings, into whatever the client reads.

Every endpoint that generates goes through :func:`generate` and gives it a sink of its own shape: an
event stream, a websocket, or nothing at all when the client wants one JSON object at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import trio

from vertumnusd.messages import Failed, Finished, Placed, Token
from vertumnusd.node.errors import RequestError
from vertumnusd.node.gate import Gate
from vertumnusd.node.service import Job
from vertumnusd.node.stop_strings import StopStrings

DIGITS = 6  # of seconds shown to clients


class Sink(Protocol):
    """Where an answer goes while it is made. A slow sink holds back its own answer only."""

    async def placed(self, placed: Placed) -> None: ...

    async def text(self, delta: str) -> None: ...


class Silence:
    """A sink for clients that want the whole answer at once."""

    async def placed(self, placed: Placed) -> None:
        pass

    async def text(self, delta: str) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished answer. ``drawn`` holds its ids without the stop token that ended it."""

    text: str
    drawn: list[int]
    finished: Finished


async def generate(gate: Gate, job: Job, stops: Sequence[str], sink: Sink) -> Outcome:
    """Run ``job``; leaving early, by cancellation or at a stop string, cancels it in the node.

    Raises :class:`RequestError` if the node refused the request or failed it.
    """
    run = _Run(gate, job, stops)
    try:
        async with gate.service.answer(job) as answer:
            async for event in answer:
                match event:
                    case Placed():
                        run.on_placed(event)
                        await sink.placed(event)
                    case Token():
                        if delta := run.on_token(event.token):
                            await sink.text(delta)
                        if run.cut:
                            break
                    case Finished():
                        run.finished = event
                    case Failed():
                        run.over = True  # the node counts its own failures
                        raise RequestError.from_failed(event)
        if rest := run.flush():
            await sink.text(rest)
        return run.outcome()
    finally:
        if not run.over:
            gate.metrics.observe_ended("cancelled")


def timings(finished: Finished) -> dict[str, Any]:
    """The ``vertumnus`` object: what the client may know about where and how fast it was served."""
    return {
        "worker": finished.worker,
        "degree": finished.degree,
        "predicted_s": round(finished.predicted_s, DIGITS),
        "prefill_s": round(finished.prefill_s, DIGITS),
        "queue_s": round(finished.queue_s, DIGITS),
        "ttft_s": round(finished.ttft_s, DIGITS),
        "handoff_ttft_s": round(finished.handoff_ttft_s, DIGITS),
    }


class _Run:
    """What is known of an answer so far."""

    def __init__(self, gate: Gate, job: Job, stops: Sequence[str]) -> None:
        self.over = False
        self.finished: Finished | None = None
        self._metrics = gate.metrics
        self._job = job
        self._detokenizer = gate.tokens.detokenizer()
        self._stop_strings = StopStrings(stops)
        self._placed: Placed | None = None
        self._drawn: list[int] = []
        self._text: list[str] = []
        self._times = [trio.current_time()]  # of submission, first and second token

    @property
    def cut(self) -> bool:
        return self._stop_strings.hit

    def on_placed(self, placed: Placed) -> None:
        if self._placed is None:
            self._metrics.observe_placed(trio.current_time() - self._times[0])
        self._placed = placed

    def on_token(self, token: int) -> str:
        """The text to show now."""
        if len(self._times) < 3:
            self._times.append(trio.current_time())
        self._drawn.append(token)
        return self._show(self._stop_strings.push(self._detokenizer.push(token)))

    def flush(self) -> str:
        """The text that was held back, now that nothing more comes."""
        if self.cut:
            return ""
        last = self._stop_strings.push(self._detokenizer.flush())
        return self._show(last + self._stop_strings.flush())

    def outcome(self) -> Outcome:
        finished = self.finished
        if finished is None:
            if not self.cut:
                raise RequestError(500, "server_error", "the answer ended without saying how")
            finished = self._sum_up()
            if len(self._drawn) < self._job.max_new_tokens:
                self._metrics.observe_finished(finished)  # else the node sees it end and counts it
        self.over = True
        drawn = self._drawn
        if finished.reason == "stop" and drawn and drawn[-1] in self._job.stop_tokens:
            drawn = drawn[:-1]
        return Outcome("".join(self._text), drawn, finished)

    def _show(self, text: str) -> str:
        self._text.append(text)
        return text

    def _sum_up(self) -> Finished:
        """The end of an answer that was cut at a stop string, and so cancelled in the node.

        Queue and prefill times are those predicted at placement, the others were seen here.
        """
        placed = self._placed
        arrived, first, *later = self._times
        return Finished(
            reason="stop",
            worker=placed.worker if placed else "",
            degree=placed.degree if placed else 0,
            input_tokens=len(self._job.tokens),
            cached_tokens=placed.cached_tokens if placed else 0,
            output_tokens=len(self._drawn),
            queue_s=placed.queue_s if placed else 0.0,
            predicted_s=placed.service_s if placed else 0.0,
            prefill_s=placed.service_s if placed else 0.0,
            ttft_s=first - arrived,
            handoff_ttft_s=(later or [first])[0] - arrived,
            total_s=trio.current_time() - arrived,
        )
