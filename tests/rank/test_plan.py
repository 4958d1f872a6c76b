"""Zigzag chunks: every token once, evenly, whatever R and C."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vertumnusd.rank.plan import Chunk, block_runs, split

degrees = st.sampled_from([1, 2, 4, 8])
lengths = st.integers(min_value=1, max_value=5000)
prefixes = st.integers(min_value=0, max_value=100_000)


@given(lengths, prefixes, degrees)
def test_every_token_is_computed_by_exactly_one_rank(suffix: int, cached: int, degree: int) -> None:
    owned = [c for chunks in split(suffix, cached, degree) for c in chunks]
    tokens = sorted(token for c in owned for token in range(c.start, c.stop))
    assert tokens == list(range(suffix))


@given(lengths, prefixes, degrees)
def test_rows_of_a_rank_lie_behind_one_another_and_no_chunk_is_empty(
    suffix: int, cached: int, degree: int
) -> None:
    for chunks in split(suffix, cached, degree):
        row = 0
        for chunk in chunks:
            assert chunk.start < chunk.stop
            assert chunk.rows == slice(row, row + chunk.stop - chunk.start)
            row = chunk.rows.stop


@given(lengths, degrees)
def test_ranks_compute_equally_many_tokens_and_pairs(suffix: int, degree: int) -> None:
    """To within two tokens, and their row of the triangle."""
    own = split(suffix, 0, degree)
    tokens = [sum(c.stop - c.start for c in cs) for cs in own]
    pairs = [sum(c.stop * (c.stop + 1) - c.start * (c.start + 1) for c in cs) // 2 for cs in own]
    assert max(tokens) - min(tokens) <= 2
    assert max(pairs) - min(pairs) <= 2 * suffix


def test_the_zigzag_of_four_ranks() -> None:
    bounds = [[(c.start, c.stop) for c in chunks] for chunks in split(80, 0, 4)]
    assert bounds == [[(0, 10), (70, 80)], [(10, 20), (60, 70)], [(20, 30), (50, 60)], [(30, 50)]]


def test_one_token_goes_to_the_first_rank() -> None:
    assert split(1, 0, 4) == ((Chunk(0, 1, 0),), (), (), ())


@pytest.mark.parametrize(
    ("writable", "runs"),
    [
        ({0: 7, 1: 8, 2: 9, 3: 10}, [(slice(0, 4, 1), 7)]),
        ({0: 7, 1: 9, 2: 10}, [(slice(0, 1, 1), 7), (slice(1, 3, 1), 9)]),
        ({0: 7, 1: 8, 3: 10}, [(slice(0, 2, 1), 7), (slice(3, 4, 1), 10)]),
        ({1: 5, 3: 6}, [(slice(1, 4, 2), 5)]),
        ({0: 5, 2: 6, 4: 3}, [(slice(0, 3, 2), 5), (slice(4, 5, 2), 3)]),
        ({3: 8, 7: 9, 11: 10}, [(slice(3, 12, 4), 8)]),
        ({}, []),
    ],
)
def test_blocks_to_store_form_as_few_copies_as_possible(
    writable: dict[int, int], runs: list[tuple[slice, int]]
) -> None:
    assert block_runs(writable, 0, 12) == runs


def test_cached_blocks_and_the_incomplete_tail_are_no_part_of_the_copies() -> None:
    # Blocks 0 and 1 are cached, 2 to 4 complete, 5 is the tail.
    assert block_runs({2: 2, 3: 3, 4: 4, 5: 5}, 2, 3) == [(slice(0, 3, 1), 2)]
