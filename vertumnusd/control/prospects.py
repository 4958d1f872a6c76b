"""Which composition the last requests would have been served best by, and how sure that is.

Policy "ours" judges compositions by what they are for: the mean time to first token. The requests
that arrived are played to each composition that could be had (``what_if.py``), and the differences
to the present one, request by request, say whether it is better by more than chance: their mean is
to be some standard errors above zero. As waits of neighbours are alike, the errors are those of the
means of whole stretches of requests. It must also be better by ``hysteresis``.

A composition without a worker that has room for the longest request ever seen is out of question.
The requests of the present window speak first; if they are too few, those of ``hold_windows``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import dropwhile
from statistics import fmean, stdev
from typing import NamedTuple

from vertumnusd.control.candidates import Candidate
from vertumnusd.control.fleet import Worker, composition_name
from vertumnusd.control.prefill_time import PrefillTime
from vertumnusd.control.settings import Settings
from vertumnusd.control.what_if import Arrived, ttfts_s
from vertumnusd.messages import Placed

REQUESTS_MAX = 512  # the latest ones are enough, and bound the time that a judgement takes
STRETCHES_MAX, STRETCH_MIN = 16, 4  # stretches of requests, and requests of one


class Prospect(NamedTuple):
    """``best`` is None where nothing is proven to be better than to stay.

    ``means_s``: predicted mean TTFT by composition, the present one first.
    """

    best: Candidate | None
    reason: str
    means_s: dict[str, float]


class Prospects:
    def __init__(self, settings: Settings, prefill_time: PrefillTime) -> None:
        self._geometry = settings
        self._settings = settings.reconfiguration
        self._prefill_time = prefill_time
        self._arrived: deque[Arrived] = deque(maxlen=REQUESTS_MAX)
        self._least_degree = 1  # that every request up to now had room at

    def arrive(self, now: float, placed: Placed) -> None:
        blocks = self._geometry.blocks(placed.input_tokens)
        least_degree = self._geometry.least_degree(blocks)
        self.need(least_degree)
        self._arrived.append(Arrived(now, placed.input_tokens, placed.cached_tokens, least_degree))

    def need(self, least_degree: int) -> None:
        """A request has room at workers of this degree only."""
        self._least_degree = max(self._least_degree, least_degree)

    def judge(
        self, now: float, began: float, workers: Sequence[Worker], candidates: Iterable[Candidate]
    ) -> Prospect:
        """``began``: when the window did."""
        requests = self._evidence(now, began)
        present_s = self._play(requests, workers)
        means_s = {composition_name(workers): fmean(present_s) if requests else 0.0}
        if len(requests) < self._settings.min_requests:
            return Prospect(None, f"only {len(requests)} requests", means_s)
        best, best_s = None, (1 - self._settings.hysteresis) * fmean(present_s)
        for candidate in candidates:
            name = composition_name(candidate.workers)
            if name in means_s or max(candidate.workers).degree < self._least_degree:
                continue
            played_s = self._play(requests, candidate.workers)
            means_s[name] = mean_s = fmean(played_s)
            if mean_s < best_s and self._is_proven(present_s, played_s):
                best, best_s = candidate, mean_s
        if best is None:
            return Prospect(None, "no composition is proven to be better", means_s)
        return Prospect(best, f"{composition_name(best.workers)} serves sooner", means_s)

    def _evidence(self, now: float, began: float) -> list[Arrived]:
        present = list(dropwhile(lambda request: request.at_s < began, self._arrived))
        if len(present) >= self._settings.min_requests:
            return present
        since = now - self._settings.hold_windows * self._settings.window_s
        return list(dropwhile(lambda request: request.at_s < since, self._arrived))

    def _play(self, requests: Sequence[Arrived], workers: Iterable[Worker]) -> list[float]:
        degrees = [worker.degree for worker in workers]
        return ttfts_s(
            requests,
            degrees,
            self._prefill_time,
            pausing=self._geometry.does("pause"),
            unplaced_wait_s=self._geometry.unplaced_wait_s,
        )

    def _is_proven(self, present_s: Sequence[float], played_s: Sequence[float]) -> bool:
        gains_s = [a - b for a, b in zip(present_s, played_s, strict=True)]
        length = max(STRETCH_MIN, -(-len(gains_s) // STRETCHES_MAX))
        ends = range(length, len(gains_s) + 1, length)
        stretches_s = [fmean(gains_s[end - length : end]) for end in ends]
        if len(stretches_s) < 2:
            return False
        error_s = stdev(stretches_s) / math.sqrt(len(stretches_s))
        return fmean(stretches_s) >= self._settings.confidence * error_s
