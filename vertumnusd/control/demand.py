"""Demand windows, and what they speak for: split, merge or stay (section 3 of the method).

    D = Σ Ê of a window's arrivals        capacity = Σ κ_C over the serving workers

    D above split_above · capacity   → split       D below merge_below · capacity → merge
    D steady, share of long requests up → merge    D steady, the share down        → split

Ê is the predicted time at the worker that was chosen, so D is in the same unit as κ_C, worker
seconds. When the signals disagree, capacity wins. A merge needs a composition that has the capacity
afterwards, less a hysteresis, or the next window would split again.

Steady and up are measured against a *reference*: the window in which D was last seen to change, or
the first after an operation.

A signal must hold for several windows in a row, and these together must be further from the
threshold than chance would bring them, by some standard errors. Arrivals are taken to be Poisson's:
then the error of D is √(Σ Ê²), which few long requests make large and many short ones small; that
of a share p of n requests is √(p(1 − p)/n). No number of requests would do for both kinds of load.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from dataclasses import astuple, dataclass

from vertumnusd.control.fleet import Worker
from vertumnusd.control.settings import ReconfigurationSettings


@dataclass(frozen=True, slots=True)
class Window:
    """What arrived in it."""

    requests: int = 0
    demand_s: float = 0.0  # Σ Ê
    squares_s2: float = 0.0  # Σ Ê²
    tokens: int = 0
    long_requests: int = 0
    long_tokens: int = 0

    def __add__(self, other: Window) -> Window:
        return Window(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def demand_error_s(self) -> float:
        """The standard error of D."""
        return math.sqrt(self.squares_s2)

    @property
    def share_error(self) -> float:
        """The standard error of the share of long requests."""
        share = self.long_request_share
        return math.sqrt(share * (1 - share) / self.requests) if self.requests else 0.0

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
    proven: bool  # for long enough, and not by chance


class Demand:
    """Counts arrivals, and judges a window when it ends."""

    def __init__(self, settings: ReconfigurationSettings) -> None:
        self._settings = settings
        self._demand_s = self._squares_s2 = 0.0
        self._lengths = array("q")
        self._reference: Window | None = None
        self._verdict = "stay"
        self._held = 0
        self._seen = Window()  # the windows that held, together

    def arrive(self, service_s: float, input_tokens: int) -> None:
        self._demand_s += service_s
        self._squares_s2 += service_s * service_s
        self._lengths.append(input_tokens)

    def window(self) -> Window:
        """What has arrived in the present one."""
        long = [tokens for tokens in self._lengths if tokens > self._settings.long_tokens]
        return Window(
            requests=len(self._lengths),
            demand_s=self._demand_s,
            squares_s2=self._squares_s2,
            tokens=sum(self._lengths),
            long_requests=len(long),
            long_tokens=sum(long),
        )

    def close(self) -> Window:
        """End the window; the next one begins."""
        window = self.window()
        self._demand_s = self._squares_s2 = 0.0
        self._lengths = array("q")
        return window

    def capacity_s(self, workers: Iterable[Worker]) -> float:
        """Σ κ_C."""
        return sum(self._settings.capacity_s(worker.degree) for worker in workers)

    def judge(self, window: Window, workers: Iterable[Worker]) -> Signal:
        """What the window, after those before it, says about the composition that served it."""
        capacity_s = self.capacity_s(workers)
        verdict, reason = self._judge_alone(window, capacity_s)
        if verdict != self._verdict:
            self._verdict, self._held, self._seen = verdict, 0, Window()
        self._held += 1
        self._seen += window
        return Signal(verdict, reason, self._held, self._is_proven(capacity_s))

    def allows(self, window: Window, workers: Iterable[Worker]) -> bool:
        """Whether these workers, after a merge, would serve the window and not split again."""
        upper_s = self._settings.split_above * self.capacity_s(workers)
        return window.demand_s <= (1 - self._settings.hysteresis) * upper_s

    def forget(self) -> None:
        """The composition is another one: what was seen before says nothing about it."""
        self._reference = None
        self._verdict, self._held, self._seen = "stay", 0, Window()

    def _is_proven(self, capacity_s: float) -> bool:
        settings, seen = self._settings, self._seen
        if self._held < settings.hold_windows or seen.requests < settings.min_requests:
            return False
        if self._verdict == "split":
            away_s = seen.demand_s - settings.split_above * capacity_s * self._held
        else:
            away_s = settings.merge_below * capacity_s * self._held - seen.demand_s
        if away_s > 0:
            return away_s >= settings.confidence * seen.demand_error_s
        if self._reference is None:
            return False
        shift = abs(seen.long_request_share - self._reference.long_request_share)
        error = math.hypot(seen.share_error, self._reference.share_error)
        return shift >= settings.confidence * error

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
