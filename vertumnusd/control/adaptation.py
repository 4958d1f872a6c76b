"""The composition follows the load: at each window's end, split, merge or stay.

``demand.py`` says what the windows speak for; here it is decided whether to act on it, with which
workers, and how often. Every window ends in a ``Decided``, which says why, also why not.

Among possible operations the one with the least predicted drain time is begun, then the one with
the least KV traffic. With homes neither a split nor a merge moves KV; what has to be copied or
computed again are the prefixes that redirected requests leave behind, hence fewest waiting tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from vertumnusd.control.demand import Demand, Signal, Window
from vertumnusd.control.fleet import Fleet, Worker, composition_name, lattice, parts
from vertumnusd.control.holding import Holding
from vertumnusd.control.reconfig import Change, Operations
from vertumnusd.control.scheduler import Scheduler
from vertumnusd.control.settings import Settings
from vertumnusd.messages import ControlCommand, Decided, Placed


class Adaptation:
    """Windows begin with the seat, if reconfiguration is automatic."""

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        scheduler: Scheduler,
        operations: Operations,
        holding: Holding,
    ) -> None:
        self.last: Decided | None = None
        self._settings = settings.reconfiguration
        self._cp_degrees = settings.cp_degrees
        self._fleet = fleet
        self._scheduler = scheduler
        self._operations = operations
        self._demand = Demand(settings.reconfiguration)
        self._merged = [w for w in lattice(settings.cp_degrees, settings.ranks) if self._parts(w)]
        self._window, self._judged = 0, Window()
        self._began = 0.0
        self._ends: float | None = None
        self._holding = holding

    def seat(self, now: float) -> None:
        if self._settings.automatic and self._ends is None:
            self._began, self._ends = now, now + self._settings.window_s

    def arrive(self, placed: Placed) -> None:
        if self._ends is not None:
            self._begin_anew()
            self._demand.arrive(placed.service_s, placed.input_tokens)

    def next_deadline(self) -> float | None:
        concluded = self._operations.concluded
        begins_anew = self._ends is not None and concluded > self._began
        return concluded + self._settings.window_s if begins_anew else self._ends

    def tick(self, now: float) -> list[ControlCommand]:
        """End the window if it is time."""
        if self._ends is None:
            return []
        self._begin_anew()
        if now < self._ends:
            return []
        self._window += 1
        window = self._judged = self._demand.close()
        self._began, self._ends = now, max(now, self._ends + self._settings.window_s)
        if self._operations.under_way:
            self._demand.forget()
            signal = Signal("stay", "the composition is changing", 0, False)
        else:
            signal = self._demand.judge(window, self._fleet.serving())
        return self._act(now, window, signal)

    def _begin_anew(self) -> None:
        """The window begins when the last operation was over: before, it was another composition"""
        concluded = self._operations.concluded
        if concluded > self._began:
            self._demand.close()
            self._demand.forget()
            self._began, self._ends = concluded, concluded + self._settings.window_s

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
                "window_ends_at": self.next_deadline(),
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
        signal = self.last.signal if self.last is not None else "stay"
        changes = self._choose(self._judged, signal) if signal != "stay" else []
        if not changes:
            return None
        before, after = changes[0]
        return {
            "kind": signal,
            "before": [w.name for w in before],
            "after": [w.name for w in after],
        }

    # --- decision

    def _act(self, now: float, window: Window, signal: Signal) -> list[ControlCommand]:
        serving = self._fleet.serving()
        changes: list[Change] = []
        why_not = self._why_not(now, signal)
        if not why_not:
            changes = self._choose(window, signal.verdict)
            why_not = "" if changes else f"no {signal.verdict} is possible"
        self.last = self._decided(window, signal, serving, why_not)
        begun = (self._operations.begin(now, *change, self._window) for change in changes)
        return [self.last, *(command for commands in begun for command in commands)]

    def _why_not(self, now: float, signal: Signal) -> str:
        """Why nothing is begun, whatever could be; "" if it may."""
        if signal.verdict == "stay":
            return "stay"
        if not signal.proven:
            return "not proven yet"
        if self._holding.is_on(now):
            return "held"
        if now < self._operations.concluded + self._settings.dwell_s:
            return "the last operation was a moment ago"
        return ""

    def _choose(self, window: Window, kind: str) -> list[Change]:
        """Changes one by one, as long as what they lead to still asks for the same."""
        chosen: list[Change] = []
        workers = self._fleet.serving()
        while len(chosen) < self._settings.max_operations:
            possible = self._splits(workers) if kind == "split" else self._merges(workers)
            if kind == "merge":
                possible = [c for c in possible if self._demand.allows(window, _after(workers, c))]
            if not possible or (chosen and not self._still(window, workers, kind)):
                break
            change = min(possible, key=self._disturbance)
            chosen.append(change)
            workers = _after(workers, change)
        touched = {worker for before, _ in chosen for worker in before}
        assert len(touched) == sum(len(before) for before, _ in chosen)
        return chosen

    def _still(self, window: Window, workers: Sequence[Worker], kind: str) -> bool:
        """Whether demand asks for another one; a share of long requests asks for one only."""
        capacity_s = self._demand.capacity_s(workers)
        if kind == "split":
            return window.demand_s > self._settings.split_above * capacity_s
        return window.demand_s < self._settings.merge_below * capacity_s

    def _splits(self, workers: Sequence[Worker]) -> list[Change]:
        there = [worker for worker in workers if self._fleet.serves(worker)]
        return [((worker,), self._parts(worker)) for worker in there if self._parts(worker)]

    def _merges(self, workers: Sequence[Worker]) -> list[Change]:
        there = {worker for worker in workers if self._fleet.serves(worker)}
        return [(self._parts(w), (w,)) for w in self._merged if there.issuperset(self._parts(w))]

    def _parts(self, worker: Worker) -> tuple[Worker, ...]:
        return parts(worker, self._cp_degrees)

    def _disturbance(self, change: Change) -> tuple[float, int, Worker]:
        before, _ = change
        drain_s = max(self._scheduler.running_s(worker) for worker in before)
        waiting_tokens = sum(self._scheduler.waiting_tokens(worker) for worker in before)
        return drain_s, waiting_tokens, before[0]

    def _decided(
        self, window: Window, signal: Signal, serving: Sequence[Worker], why_not: str
    ) -> Decided:
        capacity_s = self._demand.capacity_s(serving)
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
        )


def _after(workers: Sequence[Worker], change: Change) -> list[Worker]:
    before, after = change
    return [*(worker for worker in workers if worker not in before), *after]
