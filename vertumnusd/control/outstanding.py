"""The numbered steps of one worker: which are at its ranks, and which ranks are late with them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from vertumnusd.control.lead_run import Geometry
from vertumnusd.messages import Step, StepDone, StepFailed

STEPS_AHEAD = 1  # steps queued at the ranks behind the running one
STUCK_FACTOR = 5.0  # a step this many times slower than predicted is stuck


@dataclass(slots=True)
class OutstandingStep:
    step: Step
    waiting: set[int]  # ranks that have not finished it
    predicted_s: float
    running_since: float  # when it was issued, or the step before it ended


class Outstanding:
    """Steps in the order in which all ranks run them."""

    def __init__(self, geometry: Geometry, progress_timeout_s: float) -> None:
        self._geometry = geometry
        self._progress_timeout_s = progress_timeout_s
        self._steps: deque[OutstandingStep] = deque()
        self._seq = 0

    @property
    def has_room(self) -> bool:
        """The ranks should have one more, lest they wait."""
        return len(self._steps) <= STEPS_AHEAD

    def issue(self, now: float, request: str, layers: range, predicted_s: float) -> Step:
        self._seq += 1
        geometry = self._geometry
        step = Step(geometry.term, geometry.epoch, self._seq, request, layers.start, layers.stop)
        self._steps.append(OutstandingStep(step, set(geometry.ranks), predicted_s, now))
        return step

    def answered(self, now: float, reply: StepDone | StepFailed) -> OutstandingStep | None:
        """The step that this reply is the rank's answer to; None for a late or repeated one."""
        entry = next((o for o in self._steps if o.step.seq == reply.seq), None)
        if entry is None or reply.epoch != self._geometry.epoch or reply.rank not in entry.waiting:
            return None
        entry.waiting.discard(reply.rank)
        if not entry.waiting:
            self._steps.remove(entry)
            if self._steps:
                self._steps[0].running_since = now
        return entry

    def stuck_ranks(self, now: float) -> list[int]:
        """Ranks whose running step takes longer than any excuse; they should be killed."""
        if not self._steps:
            return []
        head = self._steps[0]
        patience_s = max(self._progress_timeout_s, STUCK_FACTOR * head.predicted_s)
        return sorted(head.waiting) if now - head.running_since > patience_s else []
