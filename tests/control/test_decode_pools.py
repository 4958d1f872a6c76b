"""KV blocks of the decode ranks."""

from __future__ import annotations

from scenario import settings

from vertumnusd.control.decode_pools import DecodePools


def pools() -> DecodePools:
    """Ranks 4 and 5 with 10 blocks each."""
    return DecodePools(settings(decode_ranks=2, decode_kv_blocks=10))


def test_the_rank_with_most_free_blocks_is_chosen():
    decode = pools()
    decode.rank_up(5)
    decode.rank_up(4)
    assert decode.choose(10) == 4  # the first of equals
    decode.reserve(4, 3)
    assert decode.choose(8) == 5
    decode.reserve(5, 4)
    assert decode.choose(7) == 4
    assert decode.choose(8) is None


def test_only_ranks_that_are_up_are_chosen():
    decode = pools()
    assert decode.choose(1) is None
    decode.rank_up(5)
    assert decode.choose(1) == 5


def test_a_rank_comes_back_empty_and_takes_back_nothing_of_before():
    decode = pools()
    decode.rank_up(4)
    decode.reserve(4, 10)
    decode.rank_down(0.0, 4)
    decode.release(4, 10)
    assert decode.choose(1) is None
    decode.rank_up(4)
    assert decode.choose(10) == 4
    assert decode.at_rest()


def test_the_snapshot_shows_ranks_that_are_down():
    decode = pools()
    decode.rank_up(4)
    decode.reserve(4, 3)
    assert decode.snapshot() == [
        {"rank": 4, "up": True, "free_blocks": 7, "kv_blocks": 10},
        {"rank": 5, "up": False, "free_blocks": 0, "kv_blocks": 10},
    ]
