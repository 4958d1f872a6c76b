"""The block table of a prefill rank as its two threads share it, with a word to the daemon.

The control thread reserves, releases and retracts while the engine thread computes and publishes.
One lock guards the table, and every ``BlocksChanged`` is sent under it, so that versions leave in
their order. No call here waits for the engine.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence

from vertumnusd.layout import owned_blocks, rotation
from vertumnusd.messages import BlocksChanged, RankStart, Reserve, Reserved, ReserveFailed
from vertumnusd.rank.blocks import BlockTable, Grant, NoRoom, Reservation
from vertumnusd.rank.link import Link


class Cache:
    """What this rank's pool holds, and for whom."""

    def __init__(self, start: RankStart, link: Link) -> None:
        self._start = start
        self._link = link
        self._lock = threading.Lock()
        self._table = BlockTable(start.kv_blocks)
        self._version = 0

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

    def release(self, request: str) -> None:
        """Unpin the request's blocks; one that has none is ignored."""
        with self._lock:
            if self._table.release(request):
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

    def _grant(self, reserve: Reserve) -> Grant:
        turn = rotation(reserve.chain, reserve.home_ranks)
        owned = owned_blocks(
            self._start.rank, reserve.blocks, reserve.home_base, turn, reserve.home_ranks
        )
        return self._table.reserve(
            reserve.request, reserve.chain, reserve.blocks, owned, reserve.keep
        )

    def _report(self, stored: Sequence[bytes] = (), evicted: Sequence[bytes] = ()) -> None:
        self._version += 1
        changed = BlocksChanged(
            self._start.rank,
            self._version,
            b"".join(stored),
            b"".join(evicted),
            self._table.cached_blocks,
            self._table.pinned_blocks,
            self._table.free_blocks,
        )
        self._link.send(changed)
