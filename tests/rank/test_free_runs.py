"""FreeRuns: consecutive ids where possible, never an id twice."""

from hypothesis import given
from hypothesis import strategies as st

from vertumnusd.rank.free_runs import FreeRuns


def test_takes_one_run_when_the_pool_is_whole() -> None:
    assert FreeRuns(8).take(5) == [0, 1, 2, 3, 4]


def test_continues_the_run_it_is_given() -> None:
    free = FreeRuns(8)
    free.take(8)
    free.give([0, 1, 4, 5, 6])
    assert free.take(2, after=3) == [4, 5]


def test_prefers_the_smallest_run_that_fits() -> None:
    free = FreeRuns(12)
    free.take(12)
    free.give([0, 1, 2, 3, 6, 7, 9])
    assert free.take(2) == [6, 7]


def test_uses_the_longest_run_first_when_none_fits() -> None:
    free = FreeRuns(8)
    free.take(8)
    free.give([0, 2, 3, 4, 6])
    assert free.take(4) == [2, 3, 4, 0]


def test_returned_ids_join_their_neighbours() -> None:
    free = FreeRuns(6)
    free.take(6)
    free.give([1, 4, 0, 5, 3, 2])
    assert free.take(6) == [0, 1, 2, 3, 4, 5]


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 7), st.none() | st.integers(0, 16)), max_size=40
    )
)
def test_ids_are_taken_or_free_never_both(script: list[tuple[bool, int, int | None]]) -> None:
    free = FreeRuns(16)
    taken: list[int] = []
    for give, count, after in script:
        if give:
            free.give(taken[:count])
            del taken[:count]
        else:
            taken += free.take(min(count, len(free)), after)
        assert len(set(taken)) == len(taken)
        assert len(free) == 16 - len(taken)
    rest = free.take(len(free))
    assert sorted(taken + rest) == list(range(16))
