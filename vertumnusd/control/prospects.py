"""Which composition the last requests would have been served best by, and how sure that is.

Policy "ours" judges compositions by what they are for: the mean time to first token. The requests
that arrived are played to each composition that could be had (``what_if.py``), at the paces that
were measured (``paces.py``), and the differences to the present one, request by request, say
whether it is better by more than chance: their mean is to be some standard errors above zero. As
waits of neighbours are alike, the errors are those of the means of whole stretches of requests. It
must also be better by ``hysteresis``.

A composition without a worker that has room for the longest request ever seen is out of question.
The requests of the present window speak; if they are too few, the latest ``min_requests``.

To play hundreds of requests to a dozen compositions takes long for those who wait meanwhile, so a
``Comparison`` goes on in pieces of at most ``PLAYED_AT_ONCE``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import dropwhile
from statistics import fmean, stdev
from typing import NamedTuple

from vertumnusd.control.candidates import Candidate
from vertumnusd.control.fleet import Worker, composition_name
from vertumnusd.control.paces import Paces
from vertumnusd.control.prefill_time import PrefillTime
from vertumnusd.control.settings import Settings
from vertumnusd.control.what_if import Arrived, ttfts_s
from vertumnusd.messages import Placed

REQUESTS_MAX = 512  # the latest ones are enough; of those that are to come …
EXPECTED_MAX = 384  # … so many, so that there is room for those that wait; or ``min_requests``
PLAYED_AT_ONCE = REQUESTS_MAX  # a request once for each composition: 2 to 4 ms
STRETCHES_MAX, STRETCH_MIN = 16, 4  # stretches of requests, and requests of one


class Prospect(NamedTuple):
    """``best`` is None where nothing is proven to be better than to stay.

    ``means_s``: predicted mean TTFT by composition, the present one first.
    """

    best: Candidate | None
    reason: str
    means_s: dict[str, float]


class Comparison:
    """Of the present composition with each that could be had, as of the moment when it is made."""

    def __init__(
        self,
        settings: Settings,
        prefill_time: PrefillTime,
        waiting: Sequence[Arrived],
        expected: Sequence[Arrived],
        workers: Sequence[Worker],
        candidates: Iterable[Candidate],
    ) -> None:
        self.workers = workers
        self._settings = settings
        self._prefill_time = prefill_time
        first_s = expected[0].at_s if expected else 0.0
        self._requests = [*(each._replace(at_s=first_s) for each in waiting), *expected]
        self._expected = len(expected)
        enough = len(expected) >= settings.reconfiguration.min_requests
        self._left = deque(candidates if enough else ())
        self._present_s: list[float] = []
        self._means_s: dict[str, float] = {}
        self._best: Candidate | None = None
        self.played = 0  # requests, once for each composition

    def go_on(self, at_once: int = PLAYED_AT_ONCE) -> Prospect | None:
        """Play some more, ``at_once`` if there are several to play; None while there is more."""
        played = 0
        if not self._means_s:
            played = len(self._requests)
            self._present_s = self._play(self.workers)
            self._means_s[composition_name(self.workers)] = fmean(self._present_s or [0.0])
        while self._left and (not played or played + len(self._requests) <= at_once):
            played += self._compare(self._left.popleft())
        return None if self._left else self._prospect()

    def _compare(self, candidate: Candidate) -> int:
        """With the best one so far. Returns how many requests were played."""
        name = composition_name(candidate.workers)
        if name in self._means_s:
            return 0
        played_s = self._play(candidate.workers)
        self._means_s[name] = mean_s = fmean(played_s)
        if mean_s < self._to_beat_s() and self._is_proven(played_s):
            self._best = candidate
        return len(played_s)

    def _to_beat_s(self) -> float:
        """Mean TTFT that another composition has to be below."""
        if self._best is not None:
            return self._means_s[composition_name(self._best.workers)]
        return (1 - self._settings.reconfiguration.hysteresis) * fmean(self._present_s)

    def _prospect(self) -> Prospect:
        best, count = self._best, self._expected
        if best is not None:
            return Prospect(best, f"{composition_name(best.workers)} serves sooner", self._means_s)
        if count < self._settings.reconfiguration.min_requests:
            return Prospect(None, f"only {count} requests", self._means_s)
        return Prospect(None, "no composition is proven to be better", self._means_s)

    def _play(self, workers: Iterable[Worker]) -> list[float]:
        self.played += len(self._requests)
        return ttfts_s(
            self._requests,
            [worker.degree for worker in workers],
            self._prefill_time,
            pausing=self._settings.does("pause"),
            unplaced_wait_s=self._settings.unplaced_wait_s,
        )

    def _is_proven(self, played_s: Sequence[float]) -> bool:
        gains_s = [a - b for a, b in zip(self._present_s, played_s, strict=True)]
        length = max(STRETCH_MIN, -(-len(gains_s) // STRETCHES_MAX))
        ends = range(length, len(gains_s) + 1, length)
        stretches_s = [fmean(gains_s[end - length : end]) for end in ends]
        if len(stretches_s) < 2:
            return False
        error_s = stdev(stretches_s) / math.sqrt(len(stretches_s))
        return fmean(stretches_s) >= self._settings.reconfiguration.confidence * error_s


class Prospects:
    """The requests that compositions are compared by."""

    def __init__(self, settings: Settings, prefill_time: PrefillTime, paces: Paces) -> None:
        self._settings = settings
        self._prefill_time = prefill_time
        self._paces = paces
        least = settings.reconfiguration.min_requests
        self._expected_most = max(EXPECTED_MAX, least)
        self._arrived: deque[tuple[str, Arrived]] = deque(maxlen=max(REQUESTS_MAX, least))
        self._least_degree = 1  # that every request up to now had room at

    def arrive(self, now: float, placed: Placed) -> None:
        blocks = self._settings.blocks(placed.input_tokens)
        least_degree = self._settings.least_degree(blocks)
        self.need(least_degree)
        arrived = Arrived(now, placed.input_tokens, placed.cached_tokens, least_degree)
        self._arrived.append((placed.request, arrived))

    def need(self, least_degree: int) -> None:
        """A request has room at workers of this degree only."""
        self._least_degree = max(self._least_degree, least_degree)

    def compare(
        self,
        now: float,
        began: float,
        workers: Sequence[Worker],
        candidates: Iterable[Candidate],
        waits: Callable[[str], bool],
    ) -> Comparison:
        """``began``: when the window did; ``waits``: whether a request does, by its name."""
        roomy = [c for c in candidates if max(c.workers).degree >= self._least_degree]
        paced = self._prefill_time.at(self._paces.of(now, self._settings.cp_degrees))
        expected = self._expected(began)
        room = max(0, REQUESTS_MAX - len(expected))
        waiting = [each for name, each in self._arrived if waits(name)][:room]
        return Comparison(self._settings, paced, waiting, expected, workers, roomy)

    def _expected(self, began: float) -> list[Arrived]:
        """What is to come will be like this."""
        settings = self._settings.reconfiguration
        arrived = [each for _, each in self._arrived]
        present = list(dropwhile(lambda request: request.at_s < began, arrived))
        if len(present) >= settings.min_requests:
            return present[-self._expected_most :]
        return arrived[-settings.min_requests :]  # however old: they are the latest news
