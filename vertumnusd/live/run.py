"""One load on one composition, live and simulated: what was seen of both.

Times are in the profile's seconds, the pace taken out; a switch is in real ones, as it computes
nothing that could be paced.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vertumnusd.live.cluster import Conversion
from vertumnusd.simulate.generate import Phase

Seconds = NDArray[np.float64]
Pairs = tuple[tuple[float, float], ...]  # live, simulated


@dataclass(frozen=True, slots=True)
class Load:
    name: str
    phases: tuple[Phase, ...]

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self.phases)

    @property
    def borders(self) -> list[float]:
        """Where phases follow each other."""
        return [float(end) for end in np.cumsum([phase.seconds for phase in self.phases])[:-1]]

    def phase_of(self, at_s: float) -> int:
        return int(np.searchsorted(self.borders, at_s, side="right"))


@dataclass(frozen=True, slots=True)
class Run:
    load: Load
    composition: str
    follows: bool
    requests: int
    failed: int
    live_s: float  # mean TTFT, here and below of those that did not fail
    simulated_s: float
    phases: Pairs  # mean TTFT by phase of the load
    course: Pairs  # and in as many equal parts of it
    live_hit_rate: float
    latest_send_s: float
    daemon_share: float  # of one core, while the load was played
    conversions: tuple[Conversion, ...]
    simulated: tuple[Conversion, ...]

    @property
    def name(self) -> str:
        return f"{self.composition}, following" if self.follows else self.composition

    @property
    def ratio(self) -> float:
        return self.live_s / self.simulated_s


@dataclass(frozen=True, slots=True)
class NotPlayed:
    """A composition that a load drowns: more requests wait at once than a node has connections."""

    load: Load
    composition: str
    requests: int  # that wait at once, in the simulator


def means(part: NDArray[np.int_], parts: int, live_s: Seconds, simulated_s: Seconds) -> Pairs:
    """Mean TTFTs of the requests of each part; not a number where a part has none."""

    def mean(ttft_s: Seconds, n: int) -> float:
        inside = ttft_s[part == n]
        return float(inside.mean()) if inside.size else float("nan")

    return tuple((mean(live_s, n), mean(simulated_s, n)) for n in range(parts))


def most_at_once(at_s: Seconds, ttft_s: Seconds) -> int:
    """Requests that wait at the same time, at most."""
    times = np.concatenate([at_s, at_s + ttft_s])
    steps = np.repeat([1, -1], len(at_s))
    return int(np.cumsum(steps[np.argsort(times, kind="stable")]).max(initial=0))
