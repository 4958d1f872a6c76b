"""Which block of the KV pool holds what: a prefill rank's own cache, without any tensor.

Every block id is in exactly one of three states::

    free ──reserve──► reserved (fresh) ──publish──► held (named by its hash) ──evict──► free
      ▲                    │       ▲                   │    pinned while a reservation uses it
      └──────release───────┘       └──────retract──────┘

A reservation pins the owned blocks of its chain that are held and sets fresh ones aside for the
rest. A copy to other ranks pins what is held, without setting anything aside; a copy from them is a
reservation that is published once it is installed. Held blocks are pinned wherever they stand in
the chain, also behind a gap and also when the request will use a shorter prefix than this rank
could offer (another rank of the home may miss a block): their content is right, so nobody writes
them again and nothing is stored twice.

A fresh block has one owner, its reservation, and gets a name only through that. So the reservation
is the reference: who comes late finds that it is gone, and never a block of somebody else.

Eviction happens only when a reservation needs room, takes only unpinned blocks, the least
recently used first. "Used" means released by a reservation; the blocks of one release go deepest
first, and whoever pins a block pins its held ancestors too, so a child always goes before its
parent.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from vertumnusd.messages import HASH_BYTES
from vertumnusd.rank.free_runs import FreeRuns

NO_PARENT = bytes(HASH_BYTES)


class NoRoom(Exception):
    """The pool cannot give ``needed`` blocks: only ``available`` are free or evictable."""

    def __init__(self, needed: int, available: int) -> None:
        super().__init__(f"{needed} blocks needed, {available} available")
        self.needed = needed
        self.available = available


@dataclass(slots=True, eq=False)
class Held:
    """A block with a name. One that is retracted while others pin it has lost its name."""

    block_hash: bytes
    parent: bytes
    block_id: int
    pins: int = 0
    used: int = 0  # version of the report that told of its last use
    sure: bool = False  # the prefill that published it was released, so did not fail
    named: bool = True


@dataclass(slots=True, eq=False)
class Reservation:
    """What one request, or one copy, has in this pool, keyed by chain index."""

    name: Hashable
    hashes: list[bytes]
    keep: bool
    pinned: dict[int, Held] = field(default_factory=dict)
    fresh: dict[int, int] = field(default_factory=dict)
    published: list[int] = field(default_factory=list)  # chain indices

    def writable(self, cached_blocks: int) -> dict[int, int]:
        """Where KV must be stored, by chain index, when ``cached_blocks`` are used from cache.

        Raises ValueError if one of those cached blocks is not held.
        """
        missing = sorted(index for index in self.fresh if index < cached_blocks)
        if missing:
            raise ValueError(
                f"request {self.name}: block {missing[0]} of {cached_blocks} cached is not held"
            )
        return dict(self.fresh)


@dataclass(frozen=True, slots=True)
class Grant:
    """Answer to a reservation.

    ``first_missing`` is the chain index of the first owned block that was not held, or ``blocks``
    if all were. It says what is held, not what may be used: a request that must compute its last
    token uses less, and its lead, who knows that limit, caps it. ``block_ids`` has the pool index
    of each owned block in chain order; ``evicted`` the hashes that had to go.
    """

    first_missing: int
    block_ids: list[int]
    evicted: list[bytes]


class BlockTable:
    """The table of one rank's own pool of ``blocks`` blocks.

    ``version`` is that of the last report about it; the caller, who reports, raises it.
    """

    def __init__(self, blocks: int) -> None:
        self.version = 0
        self._blocks = blocks
        self._free = FreeRuns(blocks)
        self._held: dict[bytes, Held] = {}
        self._idle: OrderedDict[bytes, None] = OrderedDict()  # unpinned, next to evict first
        self._reservations: dict[Hashable, Reservation] = {}

    @property
    def cached_blocks(self) -> int:
        """Blocks held under a hash, pinned or not."""
        return len(self._held)

    @property
    def pinned_blocks(self) -> int:
        """Blocks no new reservation can have: held and pinned, or reserved."""
        return self._blocks - len(self._free) - len(self._idle)

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    def reservation(self, name: Hashable) -> Reservation | None:
        return self._reservations.get(name)

    def pin(self, name: Hashable, chain: bytes) -> dict[int, int]:
        """Keep what is held of a chain until its release, to copy it: chain indices and block ids.

        Without what a prefill published that may still fail: others would have copies of it.
        """
        assert name not in self._reservations, "one reservation a name"
        reservation = self._reservations[name] = Reservation(name, _split(chain), keep=False)
        for index, block_hash in enumerate(reservation.hashes):
            held = self._held.get(block_hash)
            if held is not None and held.sure:
                self._pin(reservation, index, held)
        return {index: held.block_id for index, held in reservation.pinned.items()}

    def reserve(self, name: Hashable, chain: bytes, blocks: int, owned: range, keep: bool) -> Grant:
        """Pin what is held of ``owned``, set the rest aside. Raises NoRoom and changes nothing."""
        assert name not in self._reservations, "one reservation a name"
        hashes = _split(chain)
        found = ((i, self._held.get(hashes[i])) for i in owned if i < len(hashes))
        held = {index: block for index, block in found if block is not None}
        missing = [index for index in owned if index not in held]
        idle_hits = sum(block.pins == 0 for block in held.values())
        available = len(self._free) + len(self._idle) - idle_hits
        if len(missing) > available:
            raise NoRoom(len(missing), available)

        reservation = Reservation(name, hashes, keep)
        for index, block in held.items():
            self._pin(reservation, index, block)
        evicted = [self._evict() for _ in range(len(missing) - len(self._free))]
        last_held = held[max(held)].block_id if held else None
        reservation.fresh = dict(
            zip(missing, self._free.take(len(missing), after=last_held), strict=True)
        )
        self._reservations[name] = reservation
        ids = [self._block_id(reservation, index) for index in owned]
        return Grant(missing[0] if missing else blocks, ids, evicted)

    def publish(self, reservation: Reservation) -> list[tuple[bytes, bytes]]:
        """Name the fresh complete blocks of a finished prefill: (parent, hash), parents first.

        Nothing happens if the reservation was released meanwhile, is not kept, or has used a block
        that was retracted. Where another
        request published the same block first, that one is pinned, and the fresh one stays
        private and is freed at the release: the decode rank may still be reading it.
        """
        if self._reservations.get(reservation.name) is not reservation or not reservation.keep:
            return []
        if not all(held.named for held in reservation.pinned.values()):
            return []
        stored = []
        for index in sorted(reservation.fresh.keys() - reservation.pinned.keys()):
            if index >= len(reservation.hashes):
                break
            block_hash = reservation.hashes[index]
            held = self._held.get(block_hash)
            if held is None:
                parent = reservation.hashes[index - 1] if index else NO_PARENT
                held = Held(block_hash, parent, reservation.fresh.pop(index))
                self._held[block_hash] = held
                stored.append((parent, block_hash))
                reservation.published.append(index)
            self._pin(reservation, index, held)
        return stored

    def retract(self, name: Hashable) -> list[bytes]:
        """Take back what the request published, and let it publish nothing more: it failed.

        The blocks are private again until the release, of this reservation and of those that have
        pinned one meanwhile.
        """
        reservation = self._reservations.get(name)
        if reservation is None:
            return []
        reservation.keep = False
        retracted = []
        for index in reversed(reservation.published):
            held = reservation.pinned[index]
            del self._held[held.block_hash]
            retracted.append(held.block_hash)
            if held.pins == 1:
                reservation.fresh[index] = reservation.pinned.pop(index).block_id
            held.named = False
        reservation.published.clear()
        return retracted

    def release(self, name: Hashable) -> bool:
        """Unpin the blocks and free those never published. False if there is no reservation."""
        reservation = self._reservations.pop(name, None)
        if reservation is None:
            return False
        for index in reservation.published:
            reservation.pinned[index].sure = True
        for index in sorted(reservation.pinned, reverse=True):
            held = reservation.pinned[index]
            held.pins -= 1
            held.used = self.version + 1
            if held.pins == 0 and held.named:
                self._idle[held.block_hash] = None
            elif held.pins == 0:
                self._free.give([held.block_id])
        self._free.give(reservation.fresh.values())
        return True

    def reclaim(self, block_hashes: bytes, version: int) -> list[bytes]:
        """Free these blocks, but for those in use now or since ``version``; what went."""
        gone = [
            block_hash
            for block_hash in _split(block_hashes)
            if block_hash in self._idle and self._held[block_hash].used <= version
        ]
        for block_hash in gone:
            self._drop(block_hash)
        return gone

    def held(self) -> bytes:
        """Parent and hash of every block held, laid end to end."""
        return b"".join(held.parent + block_hash for block_hash, held in self._held.items())

    def _pin(self, reservation: Reservation, index: int, held: Held) -> None:
        held.pins += 1
        held.used = self.version + 1
        self._idle.pop(held.block_hash, None)
        reservation.pinned[index] = held

    def _evict(self) -> bytes:
        block_hash = next(iter(self._idle))
        self._drop(block_hash)
        return block_hash

    def _drop(self, block_hash: bytes) -> None:
        del self._idle[block_hash]
        self._free.give([self._held.pop(block_hash).block_id])

    def _block_id(self, reservation: Reservation, index: int) -> int:
        if index in reservation.fresh:
            return reservation.fresh[index]
        return reservation.pinned[index].block_id


def _split(chain: bytes) -> list[bytes]:
    return [chain[i : i + HASH_BYTES] for i in range(0, len(chain), HASH_BYTES)]
