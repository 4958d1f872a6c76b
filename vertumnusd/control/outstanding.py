"""The numbered steps of one worker: which are at its ranks, and which ranks are late with them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from vertumnusd.control.lead_run import Geometry, Run
from vertumnusd.control.step_order import expected_s
from vertumnusd.messages import Step, StepDone, StepFailed, StepPart

STEPS_AHEAD = 1  # steps queued at the ranks behind the running one
STUCK_FACTOR = 5.0  # a step this many times slower than predicted is stuck


@dataclass(slots=True, eq=False)
class OutstandingStep:
    step: Step
    pack: tuple[Run, ...]
    waiting: set[int]  # ranks that have not finished it
    predicted_s: float  # by what was measured so far, and …
    expected_s: float  # … by Ê alone
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

    def issue(self, now: float, pack: Sequence[Run], layers: range, predicted_s: float) -> Step:
        self._seq += 1
        geometry = self._geometry
        step = Step(
            geometry.term,
            geometry.epoch,
            self._seq,
            layers.start,
            layers.stop,
            tuple(StepPart(run.request, run.cached_tokens, run.uncached_tokens) for run in pack),
        )
        by_fit_s = expected_s(pack, layers)
        self._steps.append(
            OutstandingStep(step, tuple(pack), set(geometry.ranks), predicted_s, by_fit_s, now)
        )
        return step

    def of(self, reply: StepDone | StepFailed) -> OutstandingStep | None:
        """The step that this reply is about; None for a late or repeated one."""
        entry = next((o for o in self._steps if o.step.seq == reply.seq), None)
        if entry is None or reply.epoch != self._geometry.epoch or reply.rank not in entry.waiting:
            return None
        return entry

    def finish(self, now: float, entry: OutstandingStep, rank: int) -> bool:
        """The rank is through with the step; whether all are."""
        entry.waiting.discard(rank)
        if entry.waiting:
            return False
        self._steps.remove(entry)
        if self._steps:
            self._steps[0].running_since = now
        return True

    def stuck_ranks(self, now: float) -> list[int]:
        """Ranks whose running step takes longer than any excuse; they should be killed."""
        if not self._steps:
            return []
        head = self._steps[0]
        patience_s = max(self._progress_timeout_s, STUCK_FACTOR * head.predicted_s)
        return sorted(head.waiting) if now - head.running_since > patience_s else []
