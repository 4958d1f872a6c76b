"""Block names: fixed vectors, and what makes two of them equal or different."""

from __future__ import annotations

from vertumnusd.messages import HASH_BYTES
from vertumnusd.node.hashing import chain, pack


def test_tokens_pack_as_little_endian_u32() -> None:
    assert pack([1, 258, 2**32 - 1]) == bytes.fromhex("01000000 02010000 ffffffff")


def test_known_vectors_stay_the_same() -> None:
    names = chain(list(range(8)), 4, b"")
    assert names[:HASH_BYTES].hex() == "de2b1b0617e7d6fda4d4aab2b6241a61"
    assert names[HASH_BYTES:].hex() == "431ce80d152c6058d44bdae6f5f324c7"
    assert chain(list(range(4)), 4, b"tenant").hex() == "4d95d823d386966fab3d3658047d7b1f"


def test_a_partial_tail_has_no_name() -> None:
    assert chain([1, 2, 3], 4, b"") == b""
    assert chain(list(range(11)), 4, b"") == chain(list(range(8)), 4, b"")


def test_a_common_prefix_has_common_names_and_nothing_more() -> None:
    one = chain([1, 2, 3, 4, 5, 6, 7, 8], 4, b"")
    other = chain([1, 2, 3, 4, 5, 6, 7, 9], 4, b"")
    assert one[:HASH_BYTES] == other[:HASH_BYTES]
    assert one[HASH_BYTES:] != other[HASH_BYTES:]


def test_equal_blocks_after_different_parents_have_different_names() -> None:
    one = chain([0, 0, 5, 6], 2, b"")
    other = chain([1, 1, 5, 6], 2, b"")
    assert one[HASH_BYTES:] != other[HASH_BYTES:]


def test_another_salt_shares_no_name() -> None:
    tokens = list(range(64))
    mine, theirs = chain(tokens, 16, b"mine"), chain(tokens, 16, b"theirs")
    names = [
        {hashes[i : i + HASH_BYTES] for i in range(0, len(hashes), HASH_BYTES)}
        for hashes in (mine, theirs)
    ]
    assert len(names[0]) == 4
    assert not names[0] & names[1]
