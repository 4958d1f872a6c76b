"""What a worker runs next: at each border between steps, the request with the least left.

A long prefill is paused for a short one and goes on where it was, its hidden states waiting on the
ranks; so at most ``max_paused`` requests wait like that. Shortest remaining first alone would let
a stream of short requests starve a long one. Therefore every request counts the predicted time of
the steps that later ones ran before it (``Run.bypassed_s``), and once that reaches its own
service time it goes first: no request is made to wait by later ones for longer than it takes
itself, and one step. Among those that have waited so long the earliest is first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vertumnusd.control.lead_run import Phase, Run


@dataclass(frozen=True, slots=True)
class StepLimits:
    """How long a step is meant to be, and how many requests may wait between layers."""

    step_s: float
    max_paused: int = 4


def next_to_step(runs: Sequence[Run], limits: StepLimits) -> Run | None:
    """The request whose layers come next; ``runs`` are in the order of admission."""
    able = [run for run in runs if run.can_step]
    for run in able:
        if run.bypassed_s > 0 and run.bypassed_s >= run.service_s:
            return run
    begun = [run for run in able if run.phase is Phase.RUNNING]
    eligible = able if len(begun) <= limits.max_paused else begun
    return min(eligible, key=lambda run: run.remaining_s, default=None)


def count_bypass(runs: Sequence[Run], chosen: Run, step_s: float) -> None:
    """A step of ``chosen`` takes ``step_s``: those that came before it, and could run, wait."""
    for run in runs:
        if run is chosen:
            return
        if run.can_step:
            run.bypassed_s += step_s


def step_layers(run: Run, limits: StepLimits) -> int:
    """How many of the layers left make one step."""
    left = run.geometry.layers - run.next_layer
    return min(left, max(1, round(limits.step_s / run.layer_s))) if run.layer_s > 0 else left
