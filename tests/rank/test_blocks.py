"""The block table: what is pinned stays, what is released can be reused, nothing is held twice."""

from __future__ import annotations

from hashlib import blake2b

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from vertumnusd.messages import HASH_BYTES
from vertumnusd.rank.blocks import NO_PARENT, BlockTable, Grant, NoRoom


def chain_of(tokens: str) -> list[bytes]:
    """One chained hash for each letter, as if a letter were a block."""
    hashes = [NO_PARENT]
    for letter in tokens:
        hashes.append(blake2b(hashes[-1] + letter.encode(), digest_size=HASH_BYTES).digest())
    return hashes[1:]


def reserve(
    table: BlockTable, request: str, tokens: str, tail: int = 0, keep: bool = True
) -> Grant:
    blocks = len(tokens) + tail
    return table.reserve(request, b"".join(chain_of(tokens)), blocks, range(blocks), keep)


def prefill(table: BlockTable, request: str, tokens: str, tail: int = 0) -> None:
    """A request's whole life: afterwards its complete blocks are cached and unpinned."""
    reserve(table, request, tokens, tail)
    publish(table, request)
    table.release(request)


def publish(table: BlockTable, request: str) -> list[tuple[bytes, bytes]]:
    reservation = table.reservation(request)
    assert reservation is not None
    return table.publish(reservation)


def test_a_cold_chain_gets_consecutive_blocks_and_misses_at_zero() -> None:
    grant = reserve(BlockTable(8), "a", "abc", tail=1)
    assert grant == Grant(first_missing=0, block_ids=[0, 1, 2, 3], evicted=[])


def test_a_published_prefix_is_found_and_continued() -> None:
    table = BlockTable(8)
    prefill(table, "a", "abc", tail=1)
    grant = reserve(table, "b", "abcde")
    assert grant == Grant(first_missing=3, block_ids=[0, 1, 2, 3, 4], evicted=[])


def test_a_fully_held_chain_misses_nothing() -> None:
    table = BlockTable(4)
    prefill(table, "a", "abc")
    assert reserve(table, "b", "abc").first_missing == 3
    reservation = table.reservation("b")
    assert reservation is not None
    assert reservation.writable(cached_blocks=2) == {}


def test_only_fresh_blocks_are_writable() -> None:
    table = BlockTable(8)
    prefill(table, "a", "ab")
    reserve(table, "b", "abcd", tail=1)
    reservation = table.reservation("b")
    assert reservation is not None
    assert reservation.writable(cached_blocks=1) == {2: 2, 3: 3, 4: 4}


def test_a_cached_prefix_that_is_not_held_is_refused() -> None:
    table = BlockTable(8)
    reserve(table, "a", "ab")
    reservation = table.reservation("a")
    assert reservation is not None
    with pytest.raises(ValueError, match="block 0 of 1 cached is not held"):
        reservation.writable(cached_blocks=1)


def test_publish_names_complete_blocks_parents_first() -> None:
    table = BlockTable(8)
    reserve(table, "a", "abc", tail=1)
    a, b, c = chain_of("abc")
    assert publish(table, "a") == [(NO_PARENT, a), (a, b), (b, c)]
    assert table.cached_blocks == 3


def test_every_second_block_still_reports_its_true_parent() -> None:
    table = BlockTable(8)
    hashes = chain_of("abcd")
    grant = table.reserve("a", b"".join(hashes), 5, range(1, 5, 2), keep=True)
    assert grant == Grant(first_missing=1, block_ids=[0, 1], evicted=[])
    assert publish(table, "a") == [(hashes[0], hashes[1]), (hashes[2], hashes[3])]


def test_what_is_not_kept_is_freed() -> None:
    table = BlockTable(8)
    reserve(table, "a", "abc", keep=False)
    assert publish(table, "a") == []
    table.release("a")
    assert (table.cached_blocks, table.free_blocks) == (0, 8)


def test_a_released_reservation_publishes_nothing() -> None:
    table = BlockTable(8)
    reserve(table, "a", "abc")
    first = table.reservation("a")
    table.release("a")
    reserve(table, "a", "abc")
    assert first is not None
    assert table.publish(first) == []
    assert table.cached_blocks == 0


def test_what_is_retracted_is_private_until_its_release() -> None:
    table = BlockTable(8)
    prefill(table, "a", "a")
    reserve(table, "b", "abc")
    publish(table, "b")
    b, c = chain_of("abc")[1:]
    assert table.retract("b") == [c, b]
    assert publish(table, "b") == []
    assert (table.cached_blocks, table.pinned_blocks, table.free_blocks) == (1, 3, 5)
    table.release("b")
    assert (table.cached_blocks, table.pinned_blocks, table.free_blocks) == (1, 0, 7)


def test_a_retracted_reservation_publishes_nothing_later() -> None:
    table = BlockTable(8)
    reserve(table, "a", "ab")
    assert table.retract("a") == []
    assert publish(table, "a") == []


def test_a_block_that_others_pinned_loses_its_name_and_spoils_what_they_would_publish() -> None:
    table = BlockTable(8)
    reserve(table, "a", "ab")
    publish(table, "a")
    reserve(table, "b", "ac")
    assert table.retract("a") == chain_of("ab")[::-1]
    assert table.retract("unknown") == []
    assert publish(table, "b") == []
    table.release("a")
    assert (table.cached_blocks, table.free_blocks) == (0, 6)  # b may still be reading
    table.release("b")
    assert (table.cached_blocks, table.free_blocks) == (0, 8)


def test_a_copy_pins_what_is_held_wherever_it_is_in_the_chain() -> None:
    table = BlockTable(8)
    prefill(table, "a", "abcd")
    table.reclaim(chain_of("abcd")[2], version=1)
    assert table.pin("copy", b"".join(chain_of("abcde"))) == {0: 0, 1: 1, 3: 3}
    reserve(table, "b", "vwxyz")
    with pytest.raises(NoRoom):
        reserve(table, "c", "z")
    table.release("copy")
    assert len(reserve(table, "c", "z").evicted) == 1


def test_what_a_prefill_may_still_take_back_is_not_copied() -> None:
    table = BlockTable(8)
    reserve(table, "a", "ab")
    publish(table, "a")
    assert table.pin("early", b"".join(chain_of("ab"))) == {}
    table.release("a")
    assert table.pin("late", b"".join(chain_of("ab"))) == {0: 0, 1: 1}


def test_reclaim_spares_what_is_pinned_or_was_used_since() -> None:
    table = BlockTable(8)
    prefill(table, "a", "abc")  # used under version 1, the first report
    a, b, c = chain_of("abc")
    reserve(table, "b", "x")
    reserve(table, "d", "a")
    assert table.reclaim(c + b + a, version=0) == []
    assert table.reclaim(c, version=1) == [c]
    assert table.reclaim(b + a, version=1) == [b]
    table.version = 5
    table.release("d")
    assert table.reclaim(a, version=5) == []
    assert table.reclaim(c + a, version=6) == [a]
    assert (table.cached_blocks, table.free_blocks) == (0, 7)


def test_held_blocks_are_told_with_their_parents() -> None:
    table = BlockTable(8)
    prefill(table, "a", "ab")
    a, b = chain_of("ab")
    assert table.held() == NO_PARENT + a + a + b


def test_no_room_changes_nothing() -> None:
    table = BlockTable(6)
    prefill(table, "a", "ab")
    reserve(table, "b", "xyz")
    with pytest.raises(NoRoom) as refusal:
        reserve(table, "c", "abcd")
    assert (refusal.value.needed, refusal.value.available) == (2, 1)
    assert (table.cached_blocks, table.pinned_blocks, table.free_blocks) == (2, 3, 1)
    assert table.reservation("c") is None


def test_the_least_recently_used_goes_first_and_leaves_before_roots() -> None:
    table = BlockTable(6)
    prefill(table, "a", "abc")
    prefill(table, "b", "xyz")
    prefill(table, "c", "a")
    b, c = chain_of("abc")[1:]
    y, z = chain_of("xyz")[1:]
    assert reserve(table, "d", "1").evicted == [c]
    assert reserve(table, "e", "234").evicted == [b, z, y]


def test_pinned_blocks_are_never_evicted() -> None:
    table = BlockTable(4)
    prefill(table, "a", "ab")
    reserve(table, "b", "ab")
    reserve(table, "c", "xy")
    with pytest.raises(NoRoom):
        reserve(table, "d", "z")
    assert reserve_is_hit(table, "e", "ab")


def test_a_block_pinned_twice_stays_until_both_let_go() -> None:
    table = BlockTable(4)
    prefill(table, "a", "abc")
    reserve(table, "b", "abc")
    reserve(table, "c", "abc")
    table.release("b")
    with pytest.raises(NoRoom):
        reserve(table, "d", "xy")
    table.release("c")
    assert len(reserve(table, "d", "xy").evicted) == 1


def reserve_is_hit(table: BlockTable, request: str, tokens: str) -> bool:
    return reserve(table, request, tokens).first_missing == len(tokens)


def test_a_block_computed_twice_is_held_once_and_its_copy_freed_at_release() -> None:
    table = BlockTable(8)
    reserve(table, "a", "ab")
    reserve(table, "b", "abc")
    assert len(publish(table, "a")) == 2
    assert publish(table, "b") == [(chain_of("ab")[1], chain_of("abc")[2])]
    assert publish(table, "b") == []
    assert table.free_blocks == 3  # b's copies may still be read
    table.release("a")
    table.release("b")
    assert (table.cached_blocks, table.pinned_blocks, table.free_blocks) == (3, 0, 5)


def test_releasing_twice_is_ignored() -> None:
    table = BlockTable(4)
    reserve(table, "a", "ab")
    assert table.release("a")
    assert not table.release("a")
    assert table.free_blocks == 4


POOL = 7
REQUESTS = st.sampled_from("pqrs")


class BlockTableMachine(RuleBasedStateMachine):
    """Random lives of four requests over short chains that share prefixes, in a small pool."""

    def __init__(self) -> None:
        super().__init__()
        self.table = BlockTable(POOL)
        self.owned_ids: dict[str, list[int]] = {}  # this and the next three: by request
        self.fresh: dict[str, set[int]] = {}
        self.pinned: dict[str, set[bytes]] = {}
        self.kept: dict[str, set[bytes]] = {}  # what a publish will pin
        self.held: set[bytes] = set()
        self.parents: dict[bytes, bytes] = {}

    @rule(
        request=REQUESTS,
        tokens=st.text("ab", max_size=5),
        tail=st.integers(0, 1),
        step=st.integers(1, 2),
        keep=st.booleans(),
    )
    def reserve(self, request: str, tokens: str, tail: int, step: int, keep: bool) -> None:
        if request in self.owned_ids:
            return
        hashes = chain_of(f"{step}{tokens}")[1:]  # ownership is a function of the chain
        start = step - 1
        owned = range(start, len(hashes) + tail, step)
        before = self.counts()
        hits = {i for i in owned if i < len(hashes) and hashes[i] in self.held}
        missing = [i for i in owned if i not in hits]
        try:
            grant = self.table.reserve(request, b"".join(hashes), len(hashes) + tail, owned, keep)
        except NoRoom:
            in_use = set().union(*self.pinned.values(), {hashes[i] for i in hits})
            fresh = sum(map(len, self.fresh.values()))
            assert len(missing) > POOL - len(in_use) - fresh
            assert self.counts() == before
            return
        assert grant.first_missing == (missing[0] if missing else len(hashes) + tail)
        assert len(grant.block_ids) == len(owned)
        pinned_elsewhere = set().union(*self.pinned.values())
        assert not set(grant.evicted) & (pinned_elsewhere | {hashes[i] for i in hits})
        assert set(grant.evicted) <= self.held
        self.held -= set(grant.evicted)
        self.owned_ids[request] = grant.block_ids
        self.fresh[request] = {
            id_ for i, id_ in zip(owned, grant.block_ids, strict=True) if i not in hits
        }
        self.pinned[request] = {hashes[i] for i in hits}
        self.kept[request] = {hashes[i] for i in owned if i < len(hashes)} if keep else set()
        self.parents |= {hashes[i]: hashes[i - step] for i in owned if start < i < len(hashes)}

    @precondition(lambda self: self.owned_ids)
    @rule(data=st.data())
    def publish_maybe_again(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.owned_ids)))
        reservation = self.table.reservation(request)
        assert reservation is not None
        stored = [block_hash for _, block_hash in self.table.publish(reservation)]
        ids = {self.table._held[block_hash].block_id for block_hash in stored}
        assert ids <= self.fresh[request]
        self.fresh[request] -= ids
        assert not set(stored) & self.held
        self.held |= set(stored)
        self.pinned[request] |= self.kept[request]
        assert self.kept[request] <= self.held

    @precondition(lambda self: self.owned_ids)
    @rule(data=st.data())
    def retract(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.owned_ids)))
        others = set().union(*(self.pinned[r] for r in self.pinned if r != request))
        reservation = self.table.reservation(request)
        assert reservation is not None
        if others & {reservation.pinned[index].block_hash for index in reservation.published}:
            return  # a lead reserves nothing behind a prefill that may still fail
        retracted = self.table.retract(request)
        assert set(retracted) <= self.pinned[request] & self.held
        self.held -= set(retracted)
        self.pinned[request] -= set(retracted)
        self.fresh[request] = set(reservation.fresh.values())
        self.kept[request] = set()

    @precondition(lambda self: self.owned_ids)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.owned_ids)))
        assert self.table.release(request)
        for states in (self.owned_ids, self.fresh, self.pinned, self.kept):
            del states[request]

    def counts(self) -> tuple[int, int, int]:
        return self.table.cached_blocks, self.table.pinned_blocks, self.table.free_blocks

    def free_ids(self) -> list[int]:
        runs = self.table._free._end_by_start.items()
        return [block_id for start, end in runs for block_id in range(start, end)]

    @invariant()
    def every_id_has_one_state(self) -> None:
        held_ids = [held.block_id for held in self.table._held.values()]
        fresh = [i for r in self.table._reservations.values() for i in r.fresh.values()]
        assert sorted(held_ids + fresh + self.free_ids()) == list(range(POOL))

    @invariant()
    def counts_agree_with_the_model(self) -> None:
        assert self.table.cached_blocks == len(self.held)
        if not self.owned_ids:
            assert self.table.pinned_blocks == 0

    @invariant()
    def a_reservation_keeps_its_ids(self) -> None:
        assert not set(self.free_ids()) & {i for ids in self.owned_ids.values() for i in ids}

    @invariant()
    def a_child_is_evicted_before_its_parent(self) -> None:
        for block_hash in self.held:
            assert self.parents.get(block_hash, block_hash) in self.held


BlockTableMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
TestBlockTable = BlockTableMachine.TestCase
