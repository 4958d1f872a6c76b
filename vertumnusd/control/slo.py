"""How well requests are served: token-weighted SLO attainment, hit rate, percentiles of TTFT.

* The attainment is the share of input tokens whose request met the TTFT of its class, by length:
  one request of 64K tokens counts as much as sixty-four of 1K.
* The hit rate is the share of input tokens that came from cache.
* Percentiles come from a histogram with classes 5 % wide, so memory does not grow with requests;
  those of the last requests, for an operator's eyes, from these themselves.

TTFT is what the controller sees of it: from accepting an attempt to the end of its prefill.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any

from vertumnusd.control.settings import SloClass

SHORTEST_S = 1e-3
CLASS_WIDTH = 1.05
CLASSES = 400  # the last one begins at 78 hours
RECENT = 256  # requests
PERCENTILES = (50, 90, 99)


class SloAccount:
    """Sums over all prefills since the start."""

    def __init__(self, classes: Sequence[SloClass]) -> None:
        self._classes = tuple(classes)
        self._tokens = [0] * len(self._classes)
        self._tokens_met = [0] * len(self._classes)
        self._cached_tokens = 0
        self._ttfts = array("Q", bytes(8 * CLASSES))
        self._requests = 0
        self._recent: deque[float] = deque(maxlen=RECENT)

    def record(self, input_tokens: int, cached_tokens: int, ttft_s: float) -> None:
        index = self._class_of(input_tokens)
        self._tokens[index] += input_tokens
        if ttft_s <= self._classes[index].ttft_s:
            self._tokens_met[index] += input_tokens
        self._cached_tokens += cached_tokens
        self._ttfts[_bin(ttft_s)] += 1
        self._requests += 1
        self._recent.append(ttft_s)

    @property
    def attainment(self) -> float:
        """1 while nothing was served."""
        return _share(sum(self._tokens_met), sum(self._tokens), empty=1.0)

    @property
    def hit_rate(self) -> float:
        return _share(self._cached_tokens, sum(self._tokens), empty=0.0)

    def percentile_s(self, share: float) -> float:
        """The TTFT that ``share`` of the requests did not exceed, at most 5 % too high."""
        wanted = math.ceil(share * self._requests)
        seen = 0
        for index, count in enumerate(self._ttfts):
            seen += count
            if seen >= wanted > 0:
                return float(SHORTEST_S * CLASS_WIDTH**index)
        return 0.0

    def snapshot(self) -> dict[str, Any]:
        return {
            "attainment": self.attainment,
            "hit_rate": self.hit_rate,
            "requests": self._requests,
            "ttft_s": {f"p{n}": self.percentile_s(n / 100) for n in PERCENTILES},
            "recent_ttft_s": self._recent_percentiles(),
            "classes": [
                {
                    "below_tokens": each.below_tokens if math.isfinite(each.below_tokens) else None,
                    "ttft_s": each.ttft_s,
                    "attainment": _share(met, tokens, empty=1.0),
                    "tokens": tokens,
                }
                for each, met, tokens in zip(
                    self._classes, self._tokens_met, self._tokens, strict=True
                )
            ],
        }

    def _recent_percentiles(self) -> dict[str, float]:
        """0 while nothing was served."""
        ordered = sorted(self._recent) or [0.0]
        return {f"p{n}": ordered[math.ceil(n / 100 * len(ordered)) - 1] for n in PERCENTILES}

    def _class_of(self, input_tokens: int) -> int:
        """The last class takes whatever is longer than all limits."""
        fitting = (n for n, c in enumerate(self._classes) if input_tokens < c.below_tokens)
        return next(fitting, len(self._classes) - 1)


def _bin(ttft_s: float) -> int:
    """Its upper edge is ``SHORTEST_S · CLASS_WIDTH**bin``."""
    if ttft_s <= SHORTEST_S:
        return 0
    return min(CLASSES - 1, math.ceil(math.log(ttft_s / SHORTEST_S) / math.log(CLASS_WIDTH)))


def _share(part: int, whole: int, *, empty: float) -> float:
    return part / whole if whole else empty
