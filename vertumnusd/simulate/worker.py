"""A worker on virtual time: what its lead, with the ranks behind it, makes of the dispatched.

The order of steps, of pauses, packs and reservations is the lead's own (``control/step_order.py``,
``control/following.py``), with one step queued ahead of the running one, as there. What passes
between a lead and its ranks takes no time here.

    run ──► waits for one ahead, or looks up its prefix ──► steps ──► ended
                                    └── drained, or paused for too long ──► returned

While nothing could come between the steps of a run they are not played one by one: the worker
sleeps until its last one ends. Whatever happens before that first has it catch up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from vertumnusd.control.fleet import Worker
from vertumnusd.control.following import follows
from vertumnusd.control.lead_run import Geometry
from vertumnusd.control.outstanding import STEPS_AHEAD
from vertumnusd.control.prefill_time import packed_s
from vertumnusd.control.step_order import (
    StepLimits,
    count_bypass,
    expected_s,
    next_pack,
    pack_s,
    step_layers,
)
from vertumnusd.messages import Dispatch, DrainWorker


class VirtualRun:
    """A request from its dispatch to the end of its prefill. A ``step_order.Steppable``."""

    reserved: bool = False
    cached_tokens: int = 0
    predicted_s: float = 0.0  # by Ê, from what was cached when it reserved
    actual_s: float = 0.0  # of its whole prefill alone, and …
    overhead_s: float = 0.0  # … of this, what a pack pays once
    begun: bool = False
    next_layer: int = 0
    steps_out: int = 0
    bypassed_s: float = 0.0
    elapsed_s: float = 0.0  # computing so far, and …
    expected_s: float = 0.0  # … Ê of it
    alone: bool = False  # no step fails here
    ending: None = None  # one that ends early is gone at once

    def __init__(
        self,
        dispatch: Dispatch,
        names: list[bytes],
        chain: bytes,
        input_tokens: int,
        geometry: Geometry,
    ) -> None:
        """``names``: of its complete blocks; ``chain``: the same end to end."""
        self.dispatch = dispatch
        self.names = names
        self.chain = chain
        self.input_tokens = input_tokens
        self.geometry = geometry

    @property
    def uncached_tokens(self) -> int:
        return self.input_tokens - self.cached_tokens

    @property
    def can_step(self) -> bool:
        return self.reserved and self.next_layer < self.geometry.layers

    @property
    def paused(self) -> bool:
        return self.begun and not self.steps_out

    @property
    def service_s(self) -> float:
        if not self.reserved:
            return self.geometry.predict_s(self.input_tokens, 0)
        pace = self.elapsed_s / self.expected_s if self.expected_s else 1.0
        return self.predicted_s * pace

    @property
    def remaining_s(self) -> float:
        layers = self.geometry.layers
        return self.service_s * (layers - self.next_layer) / layers


class VirtualStep(NamedTuple):
    pack: Sequence[VirtualRun]
    last_layer: int
    elapsed_s: float
    expected_s: float


class Host(Protocol):
    """The cluster around a worker."""

    def reserve(self, run: VirtualRun) -> None:
        """Say what is cached for a run, and how long it takes."""

    def store(self, run: VirtualRun) -> None:
        """The run is over; its blocks may be used."""

    def ended(self, run: VirtualRun) -> None:
        """Tell the controller. It may dispatch to the worker at once."""

    def returned(self, run: VirtualRun) -> None:
        """Tell the controller, after what happens now."""

    def drained(self, worker: VirtualWorker) -> None:
        """Tell the controller, after what happens now."""

    def at(self, at_s: float, happen: Callable[[], None]) -> None:
        """Let something happen then."""


class VirtualWorker:
    """Asleep while one run has the ranks until it ends, or something is dispatched."""

    def __init__(self, worker: Worker, geometry: Geometry, limits: StepLimits, host: Host) -> None:
        self.worker = worker
        self.geometry = geometry
        self.draining: DrainWorker | None = None
        self.busy_s = 0.0
        self._limits = limits
        self._host = host
        self._runs: list[VirtualRun] = []  # in the order of their dispatch
        self._steps: deque[VirtualStep] = deque()  # at the ranks; the first one is running …
        self._began_at = 0.0  # … since then
        self._impatient_at = 0.0
        self._asleep = False
        self._alarms = 0  # set so far; only the last one counts

    # --- what happens

    def admit(self, now: float, run: VirtualRun) -> None:
        if self.draining is not None:
            self._host.returned(run)
            return
        self._catch_up(now)
        self._runs.append(run)
        self._go_on(now)

    def drain(self, now: float, command: DrainWorker) -> None:
        """Give back what has not begun; once the patience is over also what is paused."""
        self._catch_up(now)
        self.draining, self._impatient_at = command, now + command.patience_s
        self._give_back([run for run in self._runs if not run.begun])
        self._go_on(now)
        self._say_drained()
        if self._runs:
            self._host.at(self._impatient_at, lambda: self._lose_patience(command))

    def resume(self) -> None:
        self.draining = None

    def _lose_patience(self, command: DrainWorker) -> None:
        if self.draining is command and self._runs:
            self._catch_up(self._impatient_at)
            self._go_on(self._impatient_at)
            self._say_drained()

    def _give_back(self, runs: Sequence[VirtualRun]) -> None:
        for run in runs:
            self._runs.remove(run)
            self._host.returned(run)

    def _say_drained(self) -> None:
        if self.draining is not None and not self._runs:
            self._host.drained(self)

    def _ring(self, alarm: int, now: float) -> None:
        """A step is over, or the run during which the worker slept."""
        if alarm != self._alarms:
            return
        ended = self._wake_up(now) if self._asleep else self._complete(now)
        for run in ended:
            self._runs.remove(run)
            self._host.store(run)
        self._go_on(now)
        self._say_drained()
        for run in ended:
            self._host.ended(run)

    # --- steps

    def _go_on(self, now: float) -> None:
        """Reserve, issue steps or fall asleep, and wait for the end of what runs."""
        if self.draining is not None and now >= self._impatient_at:
            self._give_back([run for run in self._runs if run.paused])
        self._reserve(now)
        run = self._alone()
        if run is None:
            self._fill(now)
            over_at = self._began_at + self._steps[0].elapsed_s if self._steps else None
        else:
            over_at = self._fall_asleep(now, run)
        self._alarms += 1
        if over_at is not None:
            at = max(now, over_at)
            self._host.at(at, partial(self._ring, self._alarms, at))

    def _reserve(self, now: float) -> None:
        """Before a lead hears that blocks are reserved, it has issued what it could without."""
        runs = self._runs
        for number, run in enumerate(runs):
            if not run.reserved and not any(follows(run, each) for each in runs[:number]):
                self._fill(now)
                self._host.reserve(run)
                run.reserved = True

    def _fill(self, now: float) -> None:
        """Give steps to the ranks, up to one behind the running one."""
        while len(self._steps) <= STEPS_AHEAD:
            pack = next_pack(self._runs, self._limits)
            if not pack:
                return
            if not self._steps:
                self._began_at = now
            self._steps.append(self._issue(pack))

    def _issue(self, pack: Sequence[VirtualRun]) -> VirtualStep:
        layers, all_layers = step_layers(pack, self._limits), self.geometry.layers
        predicted_s = pack_s(pack) * len(layers) / (all_layers - layers.start)
        actual_s = packed_s([r.actual_s for r in pack], min(r.overhead_s for r in pack))
        for run in pack:
            run.begun, run.next_layer = True, layers.stop
            run.steps_out += 1
        count_bypass(self._runs, pack, predicted_s)
        elapsed_s = actual_s * len(layers) / all_layers
        return VirtualStep(pack, layers.stop, elapsed_s, expected_s(pack, layers))

    def _complete(self, now: float) -> Sequence[VirtualRun]:
        """The running step is over, and the next one begins. Those that are done with it."""
        step = self._steps.popleft()
        self._began_at = now
        self.busy_s += step.elapsed_s
        for run in step.pack:
            run.steps_out -= 1
            run.elapsed_s += step.elapsed_s
            run.expected_s += step.expected_s
        return step.pack if step.last_layer == self.geometry.layers else ()

    # --- sleep

    def _alone(self) -> VirtualRun | None:
        """The run behind which all others have to wait, if there is one."""
        if self._steps:
            run = self._steps[0].pack[0]
            if any(len(step.pack) > 1 or step.pack[0] is not run for step in self._steps):
                return None
        else:
            able = next((run for run in self._runs if run.can_step), None)
            if able is None:
                return None
            run = able
        in_order = not self._limits.max_paused and (run.begun or self._limits.pack_requests == 1)
        if in_order or not any(other.can_step for other in self._runs if other is not run):
            return run
        return None

    def _fall_asleep(self, now: float, run: VirtualRun) -> float:
        """When the run will be over."""
        self._asleep = True
        layers = self.geometry.layers
        if not self._steps:
            self._began_at = now
            return now + run.actual_s * (layers - run.next_layer) / layers
        step = self._steps[0]
        left_s = run.actual_s * (layers - step.last_layer) / layers
        return self._began_at + step.elapsed_s + left_s

    def _wake_up(self, now: float) -> Sequence[VirtualRun]:
        """The run is over."""
        run = self._steps[0].pack[0] if self._steps else next(r for r in self._runs if r.can_step)
        run.expected_s += self._slept_s(run)
        self._asleep = False
        self._steps.clear()
        self.busy_s += now - self._began_at
        run.elapsed_s += now - self._began_at
        return [run]

    def _slept_s(self, run: VirtualRun) -> float:
        """Ê of the layers of the run during which the worker slept."""
        layers, begun_s, done_layer = self.geometry.layers, 0.0, run.next_layer
        if self._steps:
            begun_s, done_layer = self._steps[0].expected_s, self._steps[0].last_layer
        return begun_s + run.predicted_s * (layers - done_layer) / layers

    def _catch_up(self, now: float) -> None:
        """Play the steps of the run during which the worker slept, up to the one that runs now."""
        if not self._asleep:
            return
        self._asleep = False
        self._fill(self._began_at)
        while self._steps[0].last_layer < self.geometry.layers:
            over_at = self._began_at + self._steps[0].elapsed_s
            if over_at > now:
                break
            self._complete(over_at)
            self._fill(over_at)
