"""Room in the homes: what the controller set aside, and what the ranks report.

The two are kept apart. Reservations are the controller's own promise, never above the capacity.
Reports say what lies in the pools; late by nature, they serve to choose the emptiest home, and to
see when a home that refused has room again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from vertumnusd.control.settings import Settings
from vertumnusd.messages import BlocksChanged


class PoolCounts(NamedTuple):
    """Blocks of one rank's pool, as it reported them last."""

    cached: int
    pinned: int
    free: int


class Span(NamedTuple):
    """The ``ranks`` ranks from ``base`` on, on which a chain lies: one home, or several."""

    base: int
    ranks: int

    @property
    def stop(self) -> int:
        return self.base + self.ranks


class Homes:
    """Room for n fresh blocks is set aside as a share of ``ceil(n / home_ranks)`` on every rank.

    That is the most any rank can have to hold, whichever rank the chain's rotation begins with.
    Cached blocks are not counted: followers of one long prefix share it, and counted for each they
    would wait for room that is there. Where such prefixes are pinned and large, a rank may still
    refuse; then the request waits until its home reports room.

    A chain that lies on several homes has a share on each of their ranks: where ``ranks`` is given,
    it is their number, from ``home`` on.
    """

    def __init__(self, settings: Settings) -> None:
        self._home_ranks = settings.home_ranks
        self._capacity = settings.kv_blocks
        self._reserved = dict.fromkeys(range(0, settings.ranks, settings.home_ranks), 0)
        self._pools: dict[int, PoolCounts] = {}

    def share(self, blocks: int, ranks: int = 0) -> int:
        return -(-blocks // (ranks or self._home_ranks))

    def home_of(self, rank: int) -> int:
        return rank - rank % self._home_ranks

    def fits(self, home: int, blocks: int, ranks: int = 0) -> bool:
        room = self._capacity - self.share(blocks, ranks)
        return all(self._reserved[each] <= room for each in self._span(home, ranks))

    def reserve(self, home: int, blocks: int, ranks: int = 0) -> None:
        assert self.fits(home, blocks, ranks)
        for each in self._span(home, ranks):
            self._reserved[each] += self.share(blocks, ranks)

    def release(self, home: int, blocks: int, ranks: int = 0) -> None:
        for each in self._span(home, ranks):
            assert self._reserved[each] >= self.share(blocks, ranks)
            self._reserved[each] -= self.share(blocks, ranks)

    def report(self, report: BlocksChanged) -> None:
        """Remember a rank's counts (its blocks are the trie's)."""
        counts = PoolCounts(report.cached_blocks, report.pinned_blocks, report.free_blocks)
        self._pools[report.rank] = counts

    def drop_rank(self, rank: int) -> None:
        self._pools.pop(rank, None)

    def unpinned_share(self, home: int, ranks: int = 0) -> int:
        """The largest share that no rank of the home has pinned, by their reports."""
        pools = (pool for each in self._span(home, ranks) for pool in self._pools_of(each))
        return self._capacity - max(pool.pinned for pool in pools)

    def fullness(self, home: int, ranks: int = 0) -> int:
        """Blocks cached or set aside; the emptiest home has the fewest."""
        homes = self._span(home, ranks)
        cached = sum(pool.cached for each in homes for pool in self._pools_of(each))
        return cached + sum(self._reserved[each] for each in homes) * self._home_ranks

    def at_rest(self) -> bool:
        return not any(self._reserved.values())

    def snapshot(self) -> list[dict[str, Any]]:
        return [self._snapshot_of(home) for home in self._reserved]

    def _snapshot_of(self, home: int) -> dict[str, Any]:
        pools = self._pools_of(home)
        return {
            "base": home,
            "ranks": list(range(home, home + self._home_ranks)),
            "cached_blocks": sum(pool.cached for pool in pools),
            "pinned_blocks": sum(pool.pinned for pool in pools),
            "free_blocks": sum(pool.free for pool in pools),
            "reserved_blocks": self._reserved[home] * self._home_ranks,
        }

    def _span(self, home: int, ranks: int) -> range:
        """The homes of ``ranks`` ranks from ``home`` on, but at least that one."""
        return range(home, home + max(ranks, 1), self._home_ranks)

    def _pools_of(self, home: int) -> list[PoolCounts]:
        empty = PoolCounts(cached=0, pinned=0, free=self._capacity)
        return [self._pools.get(home + rank, empty) for rank in range(self._home_ranks)]
