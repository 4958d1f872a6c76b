"""Demand windows, and what they speak for: split, merge or stay (section 3 of the method).

    D = Σ Ê of a window's arrivals        capacity = Σ κ_C over the serving workers

    D above split_above · capacity   → split       D below merge_below · capacity → merge
    D steady, share of long requests up → merge    D steady, the share down        → split

Ê is the predicted time at the worker that was chosen, so D is in the same unit as κ_C, worker
seconds. When the signals disagree, capacity wins. A merge needs a composition that has the capacity
afterwards, less a hysteresis, or the next window would split again.

Steady and up are measured against a *reference*: the window in which D was last seen to change, or
the first after an operation. A signal must hold for several windows in a row that together
have enough requests; one window of twenty seconds proves nothing about a load that comes in bursts.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from vertumnusd.control.fleet import Worker
from vertumnusd.control.settings import ReconfigurationSettings


@dataclass(frozen=True, slots=True)
class Window:
    """What arrived in it."""

    requests: int = 0
    demand_s: float = 0.0
    tokens: int = 0
    long_requests: int = 0
    long_tokens: int = 0

    @property
    def long_request_share(self) -> float:
        return self.long_requests / self.requests if self.requests else 0.0

    @property
    def long_token_share(self) -> float:
        return self.long_tokens / self.tokens if self.tokens else 0.0


@dataclass(frozen=True, slots=True)
class Signal:
    """What the windows up to now speak for, and why."""

    verdict: str  # "split", "merge" or "stay"
    reason: str
    held: int  # windows in a row
    proven: bool  # for long enough, with requests enough


class Demand:
    """Counts arrivals, and judges a window when it ends."""

    def __init__(self, settings: ReconfigurationSettings) -> None:
        self._settings = settings
        self._demand_s, self._lengths = 0.0, array("q")
        self._reference: Window | None = None
        self._verdict = "stay"
        self._held = 0
        self._evidence = 0  # requests in the windows that held

    def arrive(self, service_s: float, input_tokens: int) -> None:
        self._demand_s += service_s
        self._lengths.append(input_tokens)

    def window(self) -> Window:
        """What has arrived in the present one."""
        long = [tokens for tokens in self._lengths if tokens > self._settings.long_tokens]
        return Window(len(self._lengths), self._demand_s, sum(self._lengths), len(long), sum(long))

    def close(self) -> Window:
        """End the window; the next one begins."""
        window = self.window()
        self._demand_s, self._lengths = 0.0, array("q")
        return window

    def capacity_s(self, workers: Iterable[Worker]) -> float:
        """Σ κ_C."""
        return sum(self._settings.capacity_s(worker.degree) for worker in workers)

    def judge(self, window: Window, workers: Iterable[Worker]) -> Signal:
        """What the window, after those before it, says about the composition that served it."""
        verdict, reason = self._judge_alone(window, self.capacity_s(workers))
        if verdict != self._verdict:
            self._verdict, self._held, self._evidence = verdict, 0, 0
        self._held += 1
        self._evidence += window.requests
        settings = self._settings
        proven = self._held >= settings.hold_windows and self._evidence >= settings.min_requests
        return Signal(verdict, reason, self._held, proven)

    def allows(self, window: Window, workers: Iterable[Worker]) -> bool:
        """Whether these workers, after a merge, would serve the window and not split again."""
        upper_s = self._settings.split_above * self.capacity_s(workers)
        return window.demand_s <= (1 - self._settings.hysteresis) * upper_s

    def forget(self) -> None:
        """The composition is another one: what was seen before says nothing about it."""
        self._reference = None
        self._verdict, self._held, self._evidence = "stay", 0, 0

    def _judge_alone(self, window: Window, capacity_s: float) -> tuple[str, str]:
        settings = self._settings
        if window.demand_s > settings.split_above * capacity_s:
            return "split", "demand above the upper threshold"
        if window.demand_s < settings.merge_below * capacity_s:
            return "merge", "demand below the lower threshold"
        if not self._is_steady(window):
            self._reference = window
            return "stay", "demand changes"
        assert self._reference is not None
        shift = window.long_request_share - self._reference.long_request_share
        if shift >= settings.long_shift:
            return "merge", "demand steady, more long requests"
        if shift <= -settings.long_shift:
            return "split", "demand steady, fewer long requests"
        return "stay", "demand and long requests steady"

    def _is_steady(self, window: Window) -> bool:
        reference = self._reference
        if reference is None:
            return False
        change_s = abs(window.demand_s - reference.demand_s)
        return change_s <= self._settings.steady_share * reference.demand_s
