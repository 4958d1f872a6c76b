"""KV blocks of the decode ranks: set aside before a prefill starts, until its request is done."""

from __future__ import annotations

from typing import Any

from vertumnusd.control.settings import Settings


class DecodePools:
    """Free blocks of each decode rank that is up. A lost rank takes its reservations along."""

    def __init__(self, settings: Settings) -> None:
        self._ranks = range(settings.ranks, settings.ranks + settings.decode_ranks)
        self._capacity = settings.decode_kv_blocks
        self._free: dict[int, int] = {}
        self.none_since: float | None = None  # when the last of them was lost

    def rank_up(self, rank: int) -> None:
        self._free[rank] = self._capacity
        self.none_since = None

    def rank_down(self, now: float, rank: int) -> None:
        self._free.pop(rank, None)
        if not self._free and self.none_since is None:
            self.none_since = now

    def choose(self, blocks: int) -> int | None:
        """The rank with most free blocks, the first among equals; None if it has not enough."""
        rank = min(self._free, key=lambda rank: (-self._free[rank], rank), default=None)
        return rank if rank is not None and self._free[rank] >= blocks else None

    def reserve(self, rank: int, blocks: int) -> None:
        assert self._free[rank] >= blocks
        self._free[rank] -= blocks

    def release(self, rank: int, blocks: int) -> None:
        """Give blocks back; nothing to do for a rank lost in the meantime."""
        if rank in self._free:
            assert self._free[rank] + blocks <= self._capacity
            self._free[rank] += blocks

    def at_rest(self) -> bool:
        return all(free == self._capacity for free in self._free.values())

    def snapshot(self) -> list[dict[str, Any]]:
        return [
            {
                "rank": rank,
                "up": rank in self._free,
                "free_blocks": self._free.get(rank, 0),
                "kv_blocks": self._capacity,
            }
            for rank in self._ranks
        ]
