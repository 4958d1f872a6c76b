"""All that an evaluation came to: what plots and the page are made of."""

from __future__ import annotations

from dataclasses import dataclass

from vertumnusd.control.prefill_time import RelativeError
from vertumnusd.simulate.evaluation import Ablated, Curves, Scale
from vertumnusd.simulate.experiment import Source
from vertumnusd.simulate.scenarios import Roles, Scenario, Timeline

LENGTHS = tuple(1024 << step for step in range(8))  # input tokens of prefill times: 1K … 128K


@dataclass(frozen=True, slots=True)
class Evaluation:
    scale: Scale
    sources: list[Source]
    fits: dict[str, tuple[int, RelativeError]]
    curves: Curves
    ablated: Ablated
    improved: Ablated
    reconfigured: list[tuple[Scenario, Roles]]
    timelines: dict[str, Timeline]
    elapsed_s: float
