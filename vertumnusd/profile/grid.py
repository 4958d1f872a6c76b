"""What is measured: lengths by cached shares by degrees, and in which order.

One *round* visits every point once. Its order is shuffled over sizes and takes the degrees of a
point next to each other, in turn in a different order, so that a machine which slows down, warms up
or has a busy minute does so for all sizes and degrees alike.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

SHORTEST_TOKENS = 16
CACHED_SHARES = (0.0, 0.5, 0.9, 0.99)
QUICK_SHARES = (0.0, 0.5, 0.9)


class Point(NamedTuple):
    """One prefill to be timed."""

    degree: int
    uncached_tokens: int
    cached_tokens: int

    @property
    def input_tokens(self) -> int:
        return self.uncached_tokens + self.cached_tokens

    @property
    def cached_share(self) -> float:
        return self.cached_tokens / self.input_tokens


def lengths(longest: int, per_octave: int) -> list[int]:
    """From ``longest`` down to ``SHORTEST_TOKENS`` in even steps of the logarithm, rising."""
    found = {longest}
    step = 0
    while (length := round(longest / 2 ** (step / per_octave))) >= SHORTEST_TOKENS:
        found.add(length)
        step += 1
    return sorted(found)


def points(
    degrees: Sequence[int], inputs: Sequence[int], shares: Sequence[float], block_tokens: int
) -> list[Point]:
    """Every length with every cached share, in whole blocks, at every degree; none twice."""
    found: set[Point] = set()
    for length in inputs:
        for share in shares:
            most = (length - 1) // block_tokens  # one token at least is computed
            cached = min(int(length * share) // block_tokens, most) * block_tokens
            found.update(Point(degree, length - cached, cached) for degree in degrees)
    return sorted(found)


def in_turn(chosen: Sequence[Point], round_number: int) -> list[Point]:
    """The order of one round; the same for the same round."""
    by_size: dict[tuple[int, int], list[Point]] = {}
    for point in sorted(chosen):
        by_size.setdefault(point[1:], []).append(point)
    shuffled = random.Random(round_number)
    sizes = sorted(by_size)
    shuffled.shuffle(sizes)
    order = []
    for n, size in enumerate(sizes):
        turn = (n + round_number) % len(by_size[size])
        order += by_size[size][turn:] + by_size[size][:turn]
    return order
