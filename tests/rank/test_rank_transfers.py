"""A rank's copies: answers to each message, what the transfer thread prefers, and how it stops."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from transfer_world import World, chain_of

from vertumnusd.messages import (
    BlocksChanged,
    BlocksHeld,
    CopyRefused,
    CopyReleased,
    CopyReserved,
    Install,
    Installed,
    Pin,
    Pinned,
    Publish,
    Published,
    ReleaseCopy,
    ReserveCopy,
    Unpin,
)
from vertumnusd.rank import cache
from vertumnusd.rank.cache import Cache
from vertumnusd.rank.link import ProtocolError
from vertumnusd.rank.transfer import BlockCopy, Transfers, _u32

CHAIN = chain_of("abc")
PATIENCE_S = 20.0


def tell(world: World, rank: int, message: Any) -> list[Any]:
    """What the rank says to it, but for reports of its pool."""
    member = world.ranks[rank]
    member.out.clear()
    member.transfers.receive(message)
    return [each for each in member.out if not isinstance(each, BlocksChanged)]


def test_a_source_says_where_its_blocks_are() -> None:
    world = World()
    world.prefill(CHAIN, base=0)
    (pinned,) = tell(world, 0, Pin(1, 7, chain_of("abz")))
    assert pinned == Pinned(0, 1, 7, _u32([0, 1]), _u32([0, 1]))
    assert tell(world, 0, Pin(1, 7, CHAIN)) == []
    assert world.ranks[0].cache._table.pinned_blocks == 2
    tell(world, 0, Unpin(1, 7))
    assert world.ranks[0].cache._table.pinned_blocks == 0


def test_a_destination_sets_aside_what_it_owns_and_lacks() -> None:
    world = World()
    world.prefill(chain_of("a"), base=0)
    assert tell(world, 0, ReserveCopy(1, 7, CHAIN, 0, 1)) == [CopyReserved(0, 1, 7, _u32([1, 2]))]
    assert tell(world, 0, ReserveCopy(1, 7, CHAIN, 0, 1)) == []
    assert world.ranks[0].cache._table.pinned_blocks == 3
    assert tell(world, 0, ReserveCopy(1, 8, chain_of("mnopqrstuvwx"), 0, 1)) == [
        CopyRefused(0, 1, 8, 12, 9)
    ]


def test_a_copy_is_reported_before_it_is_published() -> None:
    world = World(ranks=2)
    world.prefill(CHAIN, base=0)
    tell(world, 1, ReserveCopy(1, 7, CHAIN, 1, 1))
    rank, install = (
        world.ranks[1],
        Install(1, 7, _u32([0, 1, 2]), _u32([0] * 3), _u32([0, 1, 2]), 0),
    )
    assert tell(world, 1, install) == []
    assert tell(world, 1, install) == []  # repeated
    while rank.copying:
        rank.copy()
    installed = rank.out.pop()
    assert (type(installed), installed.kv_bytes) == (Installed, 3)
    assert rank.names() == {}
    rank.transfers.receive(Publish(1, 7))
    *_, report, published = rank.out
    assert (len(report.stored), published) == (6 * 16, Published(1, 1, 7))
    assert tell(world, 1, Publish(1, 7)) == []
    world.check()


def test_every_release_is_answered() -> None:
    world = World(ranks=2)
    world.prefill(CHAIN, base=0)
    assert tell(world, 1, ReleaseCopy(1, 7)) == [CopyReleased(1, 1, 7)]
    tell(world, 1, ReserveCopy(1, 7, CHAIN, 1, 1))
    assert tell(world, 1, ReleaseCopy(1, 7)) == [CopyReleased(1, 1, 7)]
    assert world.ranks[1].cache._table.free_blocks == world.kv_blocks


def test_what_is_being_written_is_freed_by_the_writer() -> None:
    world = World(ranks=2)
    world.prefill(CHAIN, base=0)
    tell(world, 1, ReserveCopy(1, 7, CHAIN, 1, 1))
    tell(world, 1, Install(1, 7, _u32([0, 1, 2]), _u32([0] * 3), _u32([0, 1, 2]), 0))
    rank = world.ranks[1]
    rank.copy()
    assert tell(world, 1, ReleaseCopy(1, 7)) == []
    assert rank.cache._table.free_blocks == world.kv_blocks - 3
    rank.copy()
    assert rank.out.pop() == CopyReleased(1, 1, 7, kv_bytes=1)
    assert rank.cache._table.free_blocks == world.kv_blocks
    assert 2 not in world.pools[1]  # the rest was not copied


def test_nonsense_is_refused() -> None:
    world = World(ranks=2)
    tell(world, 1, ReserveCopy(1, 7, CHAIN, 1, 1))
    with pytest.raises(ProtocolError, match="not installed"):
        tell(world, 1, Publish(1, 7))
    with pytest.raises(ProtocolError, match="not asked for"):
        tell(world, 1, Install(1, 7, _u32([0, 1]), _u32([0, 0]), _u32([0, 1]), 0))
    tell(world, 1, ReserveCopy(1, 8, CHAIN, 1, 1))
    with pytest.raises(ProtocolError, match="not asked for"):
        tell(world, 1, Install(1, 8, _u32([0, 1, 2]), _u32([0, 0, 2]), _u32([0, 1, 2]), 0))


class GatedCopier:
    """Waits before each piece until it may copy it, and notes whose it was."""

    def __init__(self) -> None:
        self.gate = threading.Semaphore(0)
        self.copied: SimpleQueue[int] = SimpleQueue()

    def pieces(self, copies: Sequence[BlockCopy]) -> Iterator[int]:
        for copy in copies:
            assert self.gate.acquire(timeout=PATIENCE_S)
            self.copied.put(copy.source_id)
            yield 1


def test_what_is_waited_for_overtakes_and_a_limit_is_kept() -> None:
    """A copy with a limit of next to nothing lets the other one through, and can still be ended."""
    said: SimpleQueue[Any] = SimpleQueue()
    link: Any = SimpleNamespace(send=said.put, fault=said.put)
    start: Any = SimpleNamespace(rank=1, kv_blocks=12)
    transfers = Transfers(1, 2, Cache(start, link), link)
    copier = GatedCopier()
    threading.Thread(target=transfers.copy, args=(copier,), daemon=True).start()
    for transfer, text, bytes_per_s, pieces in ((1, "ab", 1e-6, 1), (2, "xy", 0.0, 2)):
        transfers.receive(ReserveCopy(1, transfer, chain_of(text), 1, 1))
        ids = _u32([10 * transfer, 10 * transfer + 1])
        transfers.receive(Install(1, transfer, _u32([0, 1]), _u32([0, 0]), ids, bytes_per_s))
        copier.gate.release(pieces)
        copied = [copier.copied.get(timeout=PATIENCE_S) for _ in range(pieces)]
        assert copied == [10 * transfer, 10 * transfer + 1][:pieces]
    assert hear(said, Installed).transfer == 2
    transfers.receive(ReleaseCopy(1, 1))
    assert hear(said, CopyReleased).transfer == 1
    assert copier.copied.empty()


def hear(said: SimpleQueue[Any], kind: type[Any]) -> Any:
    while not isinstance(message := said.get(timeout=PATIENCE_S), kind):
        assert not isinstance(message, Exception), message
    return message


def test_a_full_report_comes_in_parts_of_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "HELD_BLOCKS", 2)
    world = World()
    world.ranks[0].cache.report_all()
    assert world.hear(0, BlocksHeld) == BlocksHeld(0, 0, True, True, b"")
    world.prefill(CHAIN, base=0)
    world.ranks[0].out.clear()
    world.ranks[0].cache.report_all()
    first, last = world.ranks[0].out
    assert (first.first, first.last, last.first, last.last) == (True, False, False, True)
    assert first.version == last.version == 3
    pairs = bytes(16) + CHAIN
    expected = b"".join(pairs[at : at + 32] for at in range(0, 48, 16))
    assert first.blocks + last.blocks == expected
