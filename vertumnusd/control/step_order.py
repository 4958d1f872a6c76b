"""What a worker runs next: at each border between steps, the request with the least left.

**Pause.** A long prefill waits for a shorter one and goes on where it was, its hidden states kept
on the ranks; so at most ``max_paused`` requests wait like that. Shortest remaining first alone
would let a stream of short requests starve a long one. Therefore every request counts the
predicted time of the steps that later ones ran before it (``Run.bypassed_s``), and once that
reaches its own service time it goes first: no request is made to wait by later ones for longer
than it takes itself, and one step. Among those that have waited so long the earliest is first.

**Pack.** What every prefill costs once, whatever its length, is paid once for a pack. But all of
a pack are done only when the last one is, so a pack is never more than one step: it takes
requests in, shortest first, while all that they have left fits in ``step_s``.

Policy "paper" has neither: whole requests, one by one, in the order in which they were dispatched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from vertumnusd.control.lead_run import Geometry
from vertumnusd.control.prefill_time import packed_s
from vertumnusd.control.settings import Settings


@dataclass(frozen=True, slots=True)
class StepLimits:
    """How long a step is meant to be, and how many requests may wait in it or between layers."""

    step_s: float
    max_paused: int = 4
    pack_requests: int = 8
    pack_tokens: int = 8192  # uncached, of all requests of a step that has several

    def under(self, settings: Settings) -> StepLimits:
        """Without what the policy leaves out."""
        return replace(
            self,
            max_paused=self.max_paused if settings.does("pause") else 0,
            pack_requests=self.pack_requests if settings.does("pack") else 1,
        )


class Steppable(Protocol):
    """A request on its worker, as far as the order of steps depends on it."""

    geometry: Geometry
    alone: bool  # it shares no step
    cached_tokens: int
    next_layer: int  # the first that was not given to the ranks yet
    bypassed_s: float  # predicted time of what came later and ran before it

    @property
    def chain(self) -> bytes: ...

    @property
    def input_tokens(self) -> int: ...

    @property
    def uncached_tokens(self) -> int: ...

    @property
    def reserved(self) -> bool:
        """What is cached for it is known, and kept."""

    @property
    def begun(self) -> bool:
        """Its ranks have a step of it, or its hidden states."""

    @property
    def ending(self) -> object | None:
        """Why it ends before its time, if it does."""

    @property
    def can_step(self) -> bool:
        """It has layers left and may run them."""

    @property
    def predicted_s(self) -> float:
        """Ê of the whole prefill."""

    @property
    def service_s(self) -> float:
        """Time of the whole prefill, by what was measured of it so far, and …"""

    @property
    def remaining_s(self) -> float:
        """… of the layers that were not given to the ranks yet."""


R = TypeVar("R", bound=Steppable)


def next_pack(runs: Sequence[R], limits: StepLimits) -> list[R]:
    """The requests whose layers come next; ``runs`` are in the order of admission."""
    able = [run for run in runs if run.can_step]
    first = _first(able, limits)
    return [first, *_companions(first, able, limits)] if first is not None else []


def _first(able: Sequence[R], limits: StepLimits) -> R | None:
    begun = [run for run in able if run.begun]
    if not limits.max_paused:
        return next(iter(begun or able), None)
    for run in able:
        if run.bypassed_s > 0 and run.bypassed_s >= run.service_s:
            return run
    eligible = able if len(begun) <= limits.max_paused else begun
    return min(eligible, key=lambda run: run.remaining_s, default=None)


def _companions(first: R, able: Sequence[R], limits: StepLimits) -> list[R]:
    """Others that stand at the same layer, and can be done in the same step."""
    found: list[R] = []
    if limits.pack_requests == 1 or len(able) == 1 or first.alone:
        return found
    tokens = first.uncached_tokens
    others = [run for run in able if run is not first and not run.alone]
    alike = [run for run in others if run.next_layer == first.next_layer]
    for run in sorted(alike, key=lambda run: run.remaining_s):
        tokens += run.uncached_tokens
        pack = [first, *found, run]
        if len(pack) > limits.pack_requests or tokens > limits.pack_tokens:
            break
        if pack_s(pack) > limits.step_s:
            break
        found.append(run)
    return found


def pack_s(pack: Sequence[Steppable]) -> float:
    """Predicted time of all that a pack has left, together."""
    geometry = pack[0].geometry
    left = 1 - pack[0].next_layer / geometry.layers
    overhead_s = geometry.prefill_time.overhead_s(len(geometry.ranks)) * left
    return packed_s([run.remaining_s for run in pack], overhead_s)


def expected_s(pack: Sequence[Steppable], layers: range) -> float:
    """Ê of these layers of a pack, whatever was measured so far."""
    geometry = pack[0].geometry
    overhead_s = geometry.prefill_time.overhead_s(len(geometry.ranks))
    whole_s = packed_s([run.predicted_s for run in pack], overhead_s)
    return whole_s * len(layers) / geometry.layers


def step_layers(pack: Sequence[Steppable], limits: StepLimits) -> range:
    """Of the layers left, those that make one step."""
    first, layers = pack[0].next_layer, pack[0].geometry.layers
    per_layer_s = pack_s(pack) / (layers - first)
    count = max(1, round(limits.step_s / per_layer_s)) if per_layer_s > 0 else layers
    return range(first, min(layers, first + count))


def count_bypass(runs: Sequence[Steppable], pack: Sequence[Steppable], step_s: float) -> None:
    """A step of ``pack`` takes ``step_s``, and who came before one of the pack waits for it."""
    last = max(index for index, run in enumerate(runs) if run in pack)
    for run in runs[:last]:
        if run.can_step and run not in pack:
            run.bypassed_s += step_s
