"""Which block of the KV pool holds what: a prefill rank's own cache, without any tensor.

Every block id is in exactly one of three states::

    free ──reserve──► reserved (fresh) ──publish──► held (named by its hash) ──evict──► free
      ▲                    │       ▲                   │    pinned while a reservation uses it
      └──────release───────┘       └──────retract──────┘

A reservation pins the owned blocks of its chain that are held and sets fresh ones aside for the
rest. Held blocks are pinned wherever they stand in the chain, also behind a gap and also when the
request will use a shorter prefix than this rank could offer (another rank of the home may miss a
block): their content is right, so nobody writes them again and nothing is stored twice.

Eviction happens only when a reservation needs room, takes only unpinned blocks, the least
recently used first. "Used" means released by a reservation; the blocks of one release go deepest
first, and whoever pins a block pins its held ancestors too, so a child always goes before its
parent.
"""

from __future__ import annotations

from collections import OrderedDict
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
class Reservation:
    """What one request has in this pool. ``fresh`` and ``pinned`` are keyed by chain index."""

    request: str
    hashes: list[bytes]
    keep: bool
    pinned: dict[int, bytes] = field(default_factory=dict)
    fresh: dict[int, int] = field(default_factory=dict)
    published: list[int] = field(default_factory=list)  # chain indices

    def writable(self, cached_blocks: int) -> set[int]:
        """Chain indices whose KV must be stored here, when ``cached_blocks`` are used from cache.

        Raises ValueError if one of those cached blocks is not held.
        """
        missing = sorted(index for index in self.fresh if index < cached_blocks)
        if missing:
            raise ValueError(
                f"request {self.request}: block {missing[0]} of {cached_blocks} cached is not held"
            )
        return set(self.fresh)


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


@dataclass(slots=True)
class _Held:
    block_id: int
    pins: int


class BlockTable:
    """The table of one rank's own pool of ``blocks`` blocks."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._free = FreeRuns(blocks)
        self._held: dict[bytes, _Held] = {}
        self._idle: OrderedDict[bytes, None] = OrderedDict()  # unpinned, next to evict first
        self._reservations: dict[str, Reservation] = {}

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

    def reservation(self, request: str) -> Reservation | None:
        return self._reservations.get(request)

    def reserve(self, request: str, chain: bytes, blocks: int, owned: range, keep: bool) -> Grant:
        """Pin what is held of ``owned``, set the rest aside. Raises NoRoom and changes nothing."""
        assert request not in self._reservations, "one reservation a request"
        hashes = [chain[i : i + HASH_BYTES] for i in range(0, len(chain), HASH_BYTES)]
        held = {i: hashes[i] for i in owned if i < len(hashes) and hashes[i] in self._held}
        missing = [index for index in owned if index not in held]
        idle_hits = sum(block_hash in self._idle for block_hash in held.values())
        available = len(self._free) + len(self._idle) - idle_hits
        if len(missing) > available:
            raise NoRoom(len(missing), available)

        reservation = Reservation(request, hashes, keep)
        for index, block_hash in held.items():
            self._pin(reservation, index, block_hash)
        evicted = [self._evict() for _ in range(len(missing) - len(self._free))]
        last_held = self._held[held[max(held)]].block_id if held else None
        reservation.fresh = dict(
            zip(missing, self._free.take(len(missing), after=last_held), strict=True)
        )
        self._reservations[request] = reservation
        ids = [self._block_id(reservation, index) for index in owned]
        return Grant(missing[0] if missing else blocks, ids, evicted)

    def publish(self, reservation: Reservation) -> list[tuple[bytes, bytes]]:
        """Name the fresh complete blocks of a finished prefill: (parent, hash), parents first.

        Nothing happens if the reservation was released meanwhile or is not kept. Where another
        request published the same block first, that one is pinned, and the fresh one stays
        private and is freed at the release: the decode rank may still be reading it.
        """
        if self._reservations.get(reservation.request) is not reservation or not reservation.keep:
            return []
        stored = []
        for index in sorted(reservation.fresh.keys() - reservation.pinned.keys()):
            if index >= len(reservation.hashes):
                break
            block_hash = reservation.hashes[index]
            if block_hash not in self._held:
                self._held[block_hash] = _Held(reservation.fresh.pop(index), pins=0)
                parent = reservation.hashes[index - 1] if index else NO_PARENT
                stored.append((parent, block_hash))
                reservation.published.append(index)
            self._pin(reservation, index, block_hash)
        return stored

    def retract(self, request: str) -> list[bytes]:
        """Take back what the request published, and let it publish nothing more: it failed.

        The blocks are private again until the release. One that another reservation has pinned
        meanwhile keeps its name; a lead reserves nothing behind a prefill that may still fail.
        """
        reservation = self._reservations.get(request)
        if reservation is None:
            return []
        reservation.keep = False
        retracted = []
        for index in reversed(reservation.published):
            block_hash = reservation.pinned[index]
            if self._held[block_hash].pins == 1:
                del reservation.pinned[index]
                reservation.fresh[index] = self._held.pop(block_hash).block_id
                retracted.append(block_hash)
        reservation.published.clear()
        return retracted

    def release(self, request: str) -> bool:
        """Unpin the request's blocks and free those never published. False if it has none."""
        reservation = self._reservations.pop(request, None)
        if reservation is None:
            return False
        for index in sorted(reservation.pinned, reverse=True):
            block_hash = reservation.pinned[index]
            held = self._held[block_hash]
            held.pins -= 1
            if held.pins == 0:
                self._idle[block_hash] = None
        self._free.give(reservation.fresh.values())
        return True

    def _pin(self, reservation: Reservation, index: int, block_hash: bytes) -> None:
        self._held[block_hash].pins += 1
        self._idle.pop(block_hash, None)
        reservation.pinned[index] = block_hash

    def _evict(self) -> bytes:
        block_hash, _ = self._idle.popitem(last=False)
        self._free.give([self._held.pop(block_hash).block_id])
        return block_hash

    def _block_id(self, reservation: Reservation, index: int) -> int:
        if index in reservation.fresh:
            return reservation.fresh[index]
        return self._held[reservation.pinned[index]].block_id
