"""The block table of a prefill rank as its two threads share it, with a word to the daemon.

The control thread reserves, releases and retracts while the engine thread computes and publishes,
and the transfer thread copies. One lock guards the table, and every ``BlocksChanged`` is sent under
it, so that versions leave in their order. No call here waits for the engine.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Hashable, Sequence

from vertumnusd.layout import owned_blocks, rotation
from vertumnusd.messages import (
    HASH_BYTES,
    HELD_BLOCKS,
    BlocksChanged,
    BlocksHeld,
    DeleteBlocks,
    RankStart,
    Reserve,
    Reserved,
    ReserveFailed,
)
from vertumnusd.rank.blocks import BlockTable, Grant, NoRoom, Reservation
from vertumnusd.rank.link import Link


class Cache:
    """What this rank's pool holds, and for whom."""

    def __init__(self, start: RankStart, link: Link) -> None:
        self._start = start
        self._link = link
        self._lock = threading.Lock()
        self._table = BlockTable(start.kv_blocks)

    def reserve(self, reserve: Reserve) -> None:
        """Answer a Reserve, for the blocks that this rank owns. A repeated one has its answer."""
        start = self._start
        with self._lock:
            if self._table.reservation(reserve.request) is not None:
                return
            try:
                grant = self._grant(reserve)
            except NoRoom as no:
                refusal = ReserveFailed(
                    start.rank, reserve.epoch, reserve.request, no.needed, no.available
                )
                self._link.send(refusal)
                return
            self._report(evicted=grant.evicted)
        block_ids = array("I", grant.block_ids).tobytes()
        self._link.send(
            Reserved(start.rank, reserve.epoch, reserve.request, grant.first_missing, block_ids)
        )

    def release(self, name: Hashable) -> None:
        """Unpin the blocks of a request or a copy; one that has none is ignored."""
        with self._lock:
            if self._table.release(name):
                self._report()

    def reservation(self, request: str) -> Reservation | None:
        with self._lock:
            return self._table.reservation(request)

    def publish(self, reservation: Reservation) -> None:
        """The prefill is done: name its complete blocks, if the reservation still stands."""
        with self._lock:
            stored = self._table.publish(reservation)
            if stored:
                self._report(stored=[parent + block_hash for parent, block_hash in stored])

    def retract(self, request: str) -> None:
        """The prefill was discarded: its KV may be wrong, so nothing of it stays named."""
        with self._lock:
            evicted = self._table.retract(request)
            if evicted:
                self._report(evicted=evicted)

    # --- copies to and from other ranks

    def pin(self, name: Hashable, chain: bytes) -> dict[int, int]:
        """What is held of the chain, from now to the release: chain indices and block ids."""
        with self._lock:
            pinned = self._table.pin(name, chain)
            self._report()
        return pinned

    def reserve_copy(
        self, name: Hashable, chain: bytes, home_base: int, home_ranks: int
    ) -> dict[int, int]:
        """Room for what this rank owns and lacks of the chain: chain indices and block ids.

        Raises NoRoom.
        """
        blocks = len(chain) // HASH_BYTES
        owned = self._owned(chain, blocks, home_base, home_ranks)
        with self._lock:
            grant = self._table.reserve(name, chain, blocks, owned, keep=True)
            self._report(evicted=grant.evicted)
            reservation = self._table.reservation(name)
            assert reservation is not None
            return dict(reservation.fresh)

    def publish_copy(self, name: Hashable) -> None:
        """All of the copy is in the pool: name it, and unpin it."""
        with self._lock:
            reservation = self._table.reservation(name)
            assert reservation is not None, "a copy is published before its release"
            stored = self._table.publish(reservation)
            self._table.release(name)
            self._report(stored=[parent + block_hash for parent, block_hash in stored])

    # --- reclaim and resync

    def reclaim(self, delete: DeleteBlocks) -> None:
        with self._lock:
            gone = self._table.reclaim(delete.blocks, delete.version)
            if gone:
                self._report(evicted=gone)

    def report_all(self) -> None:
        """Say what is held, in parts that no change comes between."""
        size = 2 * HASH_BYTES * HELD_BLOCKS
        with self._lock:
            held = self._table.held()
            for at in range(0, max(len(held), 1), size):
                part = held[at : at + size]
                first, last = at == 0, at + size >= len(held)
                self._link.send(
                    BlocksHeld(self._start.rank, self._table.version, first, last, part)
                )

    def _grant(self, reserve: Reserve) -> Grant:
        owned = self._owned(reserve.chain, reserve.blocks, reserve.home_base, reserve.home_ranks)
        return self._table.reserve(
            reserve.request, reserve.chain, reserve.blocks, owned, reserve.keep
        )

    def _owned(self, chain: bytes, blocks: int, home_base: int, home_ranks: int) -> range:
        turn = rotation(chain, home_ranks)
        return owned_blocks(self._start.rank, blocks, home_base, turn, home_ranks)

    def _report(self, stored: Sequence[bytes] = (), evicted: Sequence[bytes] = ()) -> None:
        self._table.version += 1
        changed = BlocksChanged(
            self._start.rank,
            self._table.version,
            b"".join(stored),
            b"".join(evicted),
            self._table.cached_blocks,
            self._table.pinned_blocks,
            self._table.free_blocks,
        )
        self._link.send(changed)
