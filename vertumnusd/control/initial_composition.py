"""The composition to start with, from a history of the load (section 6.1 of the method).

Of the compositions whose capacity Σ κ_C covers the demand, the one with the largest degrees; if
none does, the one with the largest capacity.

Each degree divides the next larger one. Two facts follow: any number of ranks that the smallest
divides can be filled, and filling them with the degree of most capacity a rank first is best,
since workers of any other degree add up to one of it, or are a part of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from vertumnusd.control.fleet import Worker, lay_out


def composition_for(
    demands_s: Sequence[float], capacity_s: Mapping[int, float], ranks: int
) -> tuple[Worker, ...]:
    """``demands_s``: D of each past window; ``capacity_s``: κ_C of each degree that there may be.

    Raises ValueError if the degrees cannot make up the ranks.
    """
    degrees = sorted(capacity_s, reverse=True)
    if not degrees or ranks % degrees[-1]:
        raise ValueError(f"degrees {degrees} cannot make up {ranks} ranks")
    needed_s = max(demands_s, default=0.0)
    best = _most_capacity(capacity_s, ranks)
    if _capacity_s(capacity_s, best) < needed_s:
        return lay_out(best)
    chosen: Counter[int] = Counter()
    for degree in degrees:
        smaller = {d: capacity_s[d] for d in degrees if d < degree}
        left = ranks - sum(d * count for d, count in chosen.items())
        for count in range(left // degree, -1, -1):
            rest = _most_capacity(smaller, left - count * degree)
            covered_s = _capacity_s(capacity_s, chosen + Counter({degree: count}) + rest)
            if covered_s >= needed_s and (smaller or count * degree == left):
                chosen[degree] = count
                break
    return lay_out(chosen)


def _most_capacity(capacity_s: Mapping[int, float], ranks: int) -> Counter[int]:
    """The composition of these ranks with the largest capacity; of equals, larger degrees."""
    counts: Counter[int] = Counter()
    for degree in sorted(capacity_s, key=lambda d: (capacity_s[d] / d, d), reverse=True):
        counts[degree], ranks = divmod(ranks, degree)
    return counts


def _capacity_s(capacity_s: Mapping[int, float], counts: Mapping[int, int]) -> float:
    return sum(capacity_s[degree] * count for degree, count in counts.items())
