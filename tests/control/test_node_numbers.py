"""Numbers of nodes: no number twice, and free ones are used again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vertumnusd.control.node_numbers import LONGEST, NodeNumbers


def test_a_stretch_is_long_enough_but_not_endless():
    numbers = NodeNumbers()
    assert len(numbers.take(1)) == 1
    assert 22 <= len(numbers.take(22)) <= 30
    assert len(numbers.take(2 * LONGEST)) == LONGEST


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 300)), max_size=60))
def test_no_number_is_out_twice(steps):
    numbers, out = NodeNumbers(), []
    for takes, size in steps:
        if takes or not out:
            out.append(numbers.take(size))
        else:
            taken = out.pop(size % len(out))
            middle = (taken.start + taken.stop) // 2
            numbers.give(middle, taken.stop)
            numbers.give(taken.start, middle)
        together = sorted(number for taken in out for number in taken)
        assert len(together) == len(set(together))
        assert not together or together[-1] < numbers.limit


def test_what_is_given_back_in_pieces_can_be_taken_as_a_whole():
    numbers = NodeNumbers()
    numbers.take(LONGEST)
    for start in range(0, LONGEST, 2):
        numbers.give(start, start + 1)
    for start in range(1, LONGEST, 2):
        numbers.give(start, start + 1)
    assert numbers.take(LONGEST) == range(LONGEST)
    assert numbers.limit == LONGEST
