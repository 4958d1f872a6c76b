"""The composition follows the load: at each window's end, split, merge or stay.

Policy "paper" lets thresholds decide: ``demand.py`` says what the windows speak for, and here it is
decided whether to act on it, and how often. Policy "ours" compares what the requests would have
waited for on other workers (``prospects.py``), and does so within a window as well, after each of
``LOOKS`` of it: what is proven early need not wait for the end.

Every window ends in a ``Decided``, which says why, also why not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from vertumnusd.control.candidates import Candidates, after
from vertumnusd.control.demand import Demand, Signal, Window
from vertumnusd.control.fleet import Fleet, Worker, composition_name
from vertumnusd.control.holding import Holding
from vertumnusd.control.prefill_time import PrefillTime
from vertumnusd.control.prospects import Comparison, Prospect, Prospects
from vertumnusd.control.reconfig import Change, Operations
from vertumnusd.control.scheduler import Scheduler
from vertumnusd.control.settings import Settings
from vertumnusd.messages import ControlCommand, Decided, Placed

LOOKS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)  # of a window


class Judgement(NamedTuple):
    """What is wanted, and what the requests would have waited for; see ``Prospect``."""

    signal: Signal
    changes: tuple[Change, ...] = ()
    means_s: Mapping[str, float] = MappingProxyType({})
    urgent: bool = False  # the dwell does not matter


CHANGING = Judgement(Signal("stay", "the composition is changing", 0, False))


class _Pending(NamedTuple):
    """A judgement that is being made: of which window, and whether that is over."""

    window: Window
    at_end: bool
    comparison: Comparison


class Adaptation:
    """Windows begin with the seat, if reconfiguration is automatic."""

    def __init__(
        self,
        settings: Settings,
        prefill_time: PrefillTime,
        fleet: Fleet,
        scheduler: Scheduler,
        operations: Operations,
        holding: Holding,
    ) -> None:
        self.last: Decided | None = None
        self._settings = settings.reconfiguration
        self._fleet = fleet
        self._scheduler = scheduler
        self._operations = operations
        self._candidates = Candidates(settings, fleet, scheduler)
        self._demand = Demand(settings.reconfiguration)
        by_times = settings.policy == "ours" and settings.reconfiguration.judge_by == "times"
        self._prospects = Prospects(settings, prefill_time, scheduler.paces) if by_times else None
        self._pending: _Pending | None = None
        self._window = 0
        self._wanted: tuple[Change, ...] = ()
        self._began = 0.0
        self._ends: float | None = None
        self._look = 0  # the next one
        self._last_kind = ""  # "split" or "merge"
        self._holding = holding

    def seat(self, now: float) -> None:
        if self._settings.automatic and self._ends is None:
            self._begin_window(now, now + self._settings.window_s)

    def arrive(self, now: float, placed: Placed) -> None:
        if self._ends is not None:
            self._begin_anew()
            self._demand.arrive(placed.service_s, placed.input_tokens)
            if self._prospects is not None:
                self._prospects.arrive(now, placed)

    def window_ends(self) -> float | None:
        concluded = self._operations.concluded
        begins_anew = self._ends is not None and concluded > self._began
        return concluded + self._settings.window_s if begins_anew else self._ends

    def next_deadline(self) -> float | None:
        if self._pending is not None:
            return 0.0  # at once
        ends = self.window_ends()
        if ends is None or self._prospects is None or self._operations.under_way:
            return ends
        began = max(self._began, self._operations.concluded)
        look = self._look if began == self._began else 0
        return min(ends, began + LOOKS[look] * self._settings.window_s)

    def tick(self, now: float) -> list[ControlCommand]:
        """Judge, if it is time, or go on with it; many requests take several ticks."""
        if self._ends is None:
            return []
        if self._pending is not None:
            return self._go_on(now, self._pending)
        self._begin_anew()
        deadline = self.next_deadline()
        if deadline is None or now < deadline:
            return []
        at_end = now >= self._ends
        window = self._demand.close() if at_end else self._demand.window()
        judgement = self._judge(now, window, at_end)
        if at_end:
            self._window += 1
            self._begin_window(now, max(now, self._ends + self._settings.window_s))
        else:
            self._look += 1
        if isinstance(judgement, Comparison):
            return self._go_on(now, _Pending(window, at_end, judgement))
        return self._act(now, window, judgement, at_end)

    def _go_on(self, now: float, pending: _Pending) -> list[ControlCommand]:
        """Nothing is begun if the composition is not what was judged any more."""
        window, at_end, comparison = pending
        changing = self._operations.under_way or self._fleet.serving() != comparison.workers
        prospect = None if changing else comparison.go_on()
        if not changing and prospect is None:
            self._pending = pending
            return []
        self._pending = None
        judgement = CHANGING if prospect is None else _judgement(prospect)
        return self._act(now, window, judgement, at_end)

    def _begin_window(self, now: float, ends: float) -> None:
        self._began, self._ends, self._look = now, ends, 0

    def _begin_anew(self) -> None:
        """The window begins when the last operation was over: before, it was another composition"""
        concluded = self._operations.concluded
        if concluded > self._began:
            self._demand.close()
            self._demand.forget()
            self._begin_window(concluded, concluded + self._settings.window_s)

    def snapshot(self, now: float) -> dict[str, Any]:
        """The window so far, the last decision, and what would be begun if its signal were proven.

        ``window_ends_at`` is None while the composition is changed by hand only.
        """
        window, settings = self._demand.window(), self._settings
        capacity_s = self._demand.capacity_s(self._fleet.serving())
        return {
            "decision": msgspec.to_builtins(self.last),
            "adaptation": {
                **self._holding.snapshot(now),
                "window_s": settings.window_s,
                "window_ends_at": self.window_ends(),
                "requests": window.requests,
                "demand_s": window.demand_s,
                "capacity_s": capacity_s,
                "upper_s": settings.split_above * capacity_s,
                "lower_s": settings.merge_below * capacity_s,
                "hold_windows": settings.hold_windows,
                "min_requests": settings.min_requests,
                "next": self._next(),
            },
        }

    def _next(self) -> dict[str, Any] | None:
        before, after = self._wanted[0] if self._wanted else ((), ())
        if not before or not all(self._fleet.serves(worker) for worker in before):
            return None
        return {
            "kind": _kind(before, after),
            "before": [w.name for w in before],
            "after": [w.name for w in after],
        }

    # --- decision

    def _judge(self, now: float, window: Window, at_end: bool) -> Judgement | Comparison:
        serving = self._fleet.serving()
        if self._operations.under_way:
            self._demand.forget()
            return CHANGING
        if (room := self._make_room(now, serving)) is not None:
            return room
        if self._prospects is not None:
            return self._foresee(now, self._prospects, at_end)
        signal = self._demand.judge(window, serving)
        return Judgement(signal, self._choose(now, window, signal.verdict))

    def _make_room(self, now: float, serving: Sequence[Worker]) -> Judgement | None:
        """A request waits that no worker has room for, though a larger one would."""
        needed = self._scheduler.unplaced_degree()
        if not serving or needed <= max(serving).degree:
            return None
        if self._prospects is not None:
            self._prospects.need(needed)
        change = self._candidates.roomy(now, needed)
        signal = Signal("merge", "a request needs more room than any worker has", 0, True)
        return Judgement(signal, (change,) if change is not None else (), urgent=True)

    def _foresee(self, now: float, prospects: Prospects, at_end: bool) -> Comparison:
        """What the requests would have waited for elsewhere decides."""
        candidates = self._candidates.together(now)
        if not at_end:
            candidates = [c for c in candidates if c.kind == "split"]
        serving, waits = self._fleet.serving(), self._scheduler.waits
        return prospects.compare(now, self._began, serving, candidates, waits)

    def _act(
        self, now: float, window: Window, judgement: Judgement, at_end: bool
    ) -> list[ControlCommand]:
        """A look within a window is told of only if something is begun."""
        serving = self._fleet.serving()
        why_not = self._why_not(now, judgement)
        self._wanted = judgement.changes
        if why_not and not at_end:
            return []
        self.last = self._decided(window, judgement, serving, why_not)
        changes = () if why_not else judgement.changes
        if changes:
            self._last_kind = judgement.signal.verdict
        begun = (self._operations.begin(now, *change, self.last.window) for change in changes)
        return [self.last, *(command for commands in begun for command in commands)]

    def _why_not(self, now: float, judgement: Judgement) -> str:
        """Why nothing is begun, whatever could be; "" if it may."""
        signal = judgement.signal
        if signal.verdict == "stay":
            return "stay"
        if not signal.proven:
            return "not proven yet"
        if self._holding.is_on(now):
            return "held"
        foreseen = self._prospects is not None
        goes_on = foreseen and (signal.verdict == "split" or self._last_kind == "merge")
        at_once = goes_on or judgement.urgent
        if not at_once and now < self._operations.concluded + self._settings.dwell_s:
            return "the last operation was a moment ago"
        return "" if judgement.changes else f"no {signal.verdict} is possible"

    def _choose(self, now: float, window: Window, kind: str) -> tuple[Change, ...]:
        """Changes one by one, as long as what they lead to still asks for the same."""
        chosen: list[Change] = []
        workers = self._fleet.serving()
        disturbance = partial(self._candidates.disturbance, now)
        while kind != "stay" and len(chosen) < self._settings.max_operations:
            possible = self._possible(window, workers, kind)
            if not possible or (chosen and not self._still(window, workers, kind)):
                break
            chosen.append(min(possible, key=disturbance))
            workers = after(workers, chosen[-1:])
        touched = {worker for before, _ in chosen for worker in before}
        assert len(touched) == sum(len(before) for before, _ in chosen)
        return tuple(chosen)

    def _possible(self, window: Window, workers: Sequence[Worker], kind: str) -> list[Change]:
        if kind == "split":
            return self._candidates.splits(workers)
        merges = self._candidates.merges(workers)
        return [merge for merge in merges if self._demand.allows(window, after(workers, [merge]))]

    def _still(self, window: Window, workers: Sequence[Worker], kind: str) -> bool:
        """Whether demand asks for another one; a share of long requests asks for one only."""
        capacity_s = self._demand.capacity_s(workers)
        if kind == "split":
            return window.demand_s > self._settings.split_above * capacity_s
        return window.demand_s < self._settings.merge_below * capacity_s

    def _decided(
        self, window: Window, judgement: Judgement, serving: Sequence[Worker], why_not: str
    ) -> Decided:
        signal, capacity_s = judgement.signal, self._demand.capacity_s(serving)
        explained = why_not and why_not != "stay"
        return Decided(
            window=self._window,
            verdict="stay" if why_not else signal.verdict,
            signal=signal.verdict,
            reason=f"{signal.reason}; {why_not}" if explained else signal.reason,
            held=signal.held,
            requests=window.requests,
            demand_s=window.demand_s,
            capacity_s=capacity_s,
            upper_s=self._settings.split_above * capacity_s,
            lower_s=self._settings.merge_below * capacity_s,
            long_request_share=window.long_request_share,
            long_token_share=window.long_token_share,
            composition=composition_name(serving),
            predicted_ttft_s=tuple(judgement.means_s.items()),
        )


def _judgement(prospect: Prospect) -> Judgement:
    best = prospect.best
    if best is None:
        return Judgement(Signal("stay", prospect.reason, 0, False), (), prospect.means_s)
    return Judgement(Signal(best.kind, prospect.reason, 0, True), best.changes, prospect.means_s)


def _kind(before: Sequence[Worker], after: Sequence[Worker]) -> str:
    return "split" if len(after) > len(before) else "merge"
