"""No composition is better than the one chosen, by trying all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vertumnusd.control.fleet import composition_name, lattice
from vertumnusd.control.initial_composition import composition_for


def all_counts(degrees: Sequence[int], ranks: int) -> Iterator[tuple[int, ...]]:
    """How many workers of each degree, largest degree first."""
    if not degrees:
        if not ranks:
            yield ()
        return
    for count in range(ranks // degrees[0] + 1):
        for rest in all_counts(degrees[1:], ranks - count * degrees[0]):
            yield (count, *rest)


kappas = st.sampled_from([1.0, 1.5, 2.0, 3.0, 5.0, 9.0])


@given(
    st.sampled_from([(4, 2, 1), (8, 4), (2,), (8, 2, 1)]),
    st.lists(kappas, min_size=3, max_size=3),
    st.integers(1, 3),
    st.floats(0, 60),
)
def test_it_is_the_best_of_all(degrees, kappa, units, demand_s):
    capacity_s = dict(zip(degrees, kappa, strict=False))
    ranks = units * degrees[0]
    chosen = composition_for([demand_s], capacity_s, ranks)
    counts = tuple(sum(worker.degree == degree for worker in chosen) for degree in degrees)
    every = list(all_counts(degrees, ranks))
    capacities = {c: sum(n * capacity_s[d] for n, d in zip(c, degrees, strict=True)) for c in every}
    enough = [c for c in every if capacities[c] >= demand_s]
    if enough:
        assert counts == max(enough)
    else:
        assert capacities[counts] == pytest.approx(max(capacities.values()))
    assert set(chosen) <= set(lattice(degrees, ranks))


def test_without_a_history_the_largest_degrees_are_taken():
    assert composition_name(composition_for([], {1: 1.0, 4: 1.0}, 10)) == "2CP4/2CP1"


def test_degrees_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="cannot make up 6 ranks"):
        composition_for([1.0], {4: 1.0}, 6)
