"""How much slower than predicted prefills really are, degree by degree.

A profile is of one machine on a good day. Where more ranks than cores share a machine, or a GPU
throttles, every prefill takes longer, and not at all degrees alike. The *pace* of a degree is the
median of measured over predicted time of its latest prefills: those of the last window, and at
least ``LATEST_MIN`` of them. With fewer ever seen, a degree has no pace of its own.

A degree that has not served for long is known less and less: its pace turns into that of the
nearest degree that was seen last, by half every ``HALF_LIFE_WINDOWS``. So what was once slow is
tried again, at times, and a machine that gets faster or slower as a whole is so at every degree.

Both times are the lead's, of the same steps, so waiting, pauses and packs are in neither. What a
pace cannot know is how slow a degree would be if more workers, or fewer, computed at once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from statistics import median

LATEST_MAX, LATEST_MIN = 64, 5  # prefills that the median is of
HALF_LIFE_WINDOWS = 12.0


class _Seen:
    """Logarithms of measured over predicted time, of one degree."""

    def __init__(self) -> None:
        self.latest: deque[tuple[float, float]] = deque(maxlen=LATEST_MAX)  # when, and what

    @property
    def last_at(self) -> float:
        return self.latest[-1][0]

    def pace(self, window_s: float) -> float:
        recent = [pace for at_s, pace in self.latest if at_s > self.last_at - window_s]
        least = [pace for _, pace in self.latest][-LATEST_MIN:]
        return median(recent if len(recent) > LATEST_MIN else least)


class Paces:
    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._by_degree: dict[int, _Seen] = {}

    def observe(self, now: float, degree: int, measured_s: float, predicted_s: float) -> None:
        """A prefill is over. What has no time to compare says nothing."""
        if measured_s > 0 and predicted_s > 0:
            seen = self._by_degree.setdefault(degree, _Seen())
            seen.latest.append((now, math.log(measured_s / predicted_s)))

    def of(self, now: float, degrees: Iterable[int]) -> dict[int, float]:
        """Measured over predicted time at each of these degrees; 1 while nothing is known."""
        known = {d: s for d, s in self._by_degree.items() if len(s.latest) >= LATEST_MIN}
        if not known:
            return dict.fromkeys(degrees, 1.0)
        logs = {degree: seen.pace(self._window_s) for degree, seen in known.items()}
        return {degree: math.exp(self._log(now, degree, known, logs)) for degree in degrees}

    def _log(
        self, now: float, degree: int, known: dict[int, _Seen], logs: dict[int, float]
    ) -> float:
        """What is known of the degree itself, and the rest from its nearest fresh neighbour."""
        last_at = max(seen.last_at for seen in known.values())
        fresh = [d for d, seen in known.items() if seen.last_at > last_at - self._window_s]
        nearest = min(fresh, key=lambda d: (abs(math.log2(d / degree)), d))
        if degree not in known:
            return logs[nearest]
        age_windows = (now - known[degree].last_at) / self._window_s
        weight = 1.0 if degree in fresh else 0.5 ** (age_windows / HALF_LIFE_WINDOWS)
        return weight * logs[degree] + (1 - weight) * logs[nearest]
