"""Blocks that wait for the block before them."""

from __future__ import annotations

from vertumnusd.control.pending_blocks import PendingBlocks


def block(letter: str) -> bytes:
    return letter.encode().ljust(16, b"\0")


def waiting(*pairs: tuple[int, str, str], home_ranks: int = 1) -> PendingBlocks:
    pending = PendingBlocks(4, home_ranks)
    for rank, parent, name in pairs:
        pending.add(rank, block(parent), block(name))
    return pending


def taken(pending: PendingBlocks, parent: str) -> list[tuple[int, str]]:
    chains = pending.take(block(parent))
    return [(ranks, chain.replace(b"\0", b"").decode()) for ranks, chain in chains]


def test_a_chain_is_taken_as_a_whole():
    pending = waiting((0, "c", "d"), (0, "a", "b"), (0, "b", "c"))
    assert taken(pending, "a") == [(1 << 0, "bcd")]
    assert len(pending) == 0


def test_it_is_taken_as_far_as_the_same_homes_hold_it():
    pending = waiting((0, "a", "b"), (1, "a", "b"), (0, "b", "c"))
    assert taken(pending, "a") == [(1 << 0 | 1 << 1, "b")]
    assert taken(pending, "b") == [(1 << 0, "c")]


def test_the_ranks_of_a_home_take_turns_along_a_chain():
    pending = waiting((2, "a", "b"), (3, "b", "c"), (2, "c", "d"), home_ranks=2)
    assert taken(pending, "a") == [(1 << 2 | 1 << 3, "bcd")]


def test_where_chains_part_each_is_taken_by_itself():
    pending = waiting((0, "a", "b"), (0, "b", "c"), (0, "b", "d"))
    assert taken(pending, "a") == [(1, "b")]
    assert block("b") in pending
    assert taken(pending, "b") == [(1, "c"), (1, "d")]


def test_a_block_waits_until_its_last_rank_is_gone():
    pending = waiting((0, "a", "b"), (1, "a", "b"), (1, "a", "c"))
    pending.remove(0, block("b"))
    pending.remove(0, block("c"))
    assert len(pending) == 2
    pending.drop(1)
    assert len(pending) == 0
    assert block("a") not in pending
