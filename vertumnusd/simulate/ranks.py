"""A virtual rank: its pool of KV blocks, and the reports it sends of it.

Block ``b`` of a chain is owned by one rank of the home, as ``layout.py`` says, so a home has cached
what all its ranks together have without a gap.

With ``unsettle`` the blocks become *pending*, as after a conversion of workers that own KV at their
own degree: half of a chain's blocks then lie on another rank than the new geometry wants, and are
moved when the chain is first used again.
"""

from __future__ import annotations

from collections.abc import Sequence

from vertumnusd.control.prefix_trie import ROOT
from vertumnusd.layout import rotation
from vertumnusd.messages import BlocksChanged
from vertumnusd.simulate.pools import Pool

MISPLACED_SHARE = 0.5  # of a chain's blocks, when a degree is doubled or halved


class VirtualRank:
    __slots__ = ("_capacity", "_version", "pending", "pool", "rank")

    def __init__(self, rank: int, capacity: int) -> None:
        self.rank = rank
        self.pool = Pool[bytes](capacity)
        self.pending: set[bytes] = set()
        self._capacity = capacity
        self._version = 0

    def use(self, owned: Sequence[bytes], parents: Sequence[bytes]) -> BlocksChanged | None:
        """Mark blocks as used, storing what is missing. ``parents``: of each its parent."""
        stored, evicted = self.pool.use(owned)
        if self.pending:
            self.pending.difference_update(owned, evicted)
        if not stored and not evicted:
            return None
        pairs = b"".join([parents[n] + owned[n] for n in stored])
        return self._report(pairs, b"".join(evicted))

    def reclaim(self, blocks: Sequence[bytes]) -> BlocksChanged | None:
        """Delete those of the blocks that are here."""
        gone = [block for block in blocks if self.pool.discard(block)]
        self.pending.difference_update(gone)
        return self._report(b"", b"".join(gone)) if gone else None

    def unsettle(self) -> None:
        self.pending.update(self.pool.blocks())

    def _report(self, stored: bytes, evicted: bytes) -> BlocksChanged:
        self._version += 1
        held = len(self.pool)
        free = self._capacity - held
        return BlocksChanged(self.rank, self._version, stored, evicted, held, 0, free)


class VirtualHome:
    """The ranks that together store chains. ``pinned``: blocks that begun requests read."""

    __slots__ = ("_ranks", "pinned")

    def __init__(self, ranks: Sequence[VirtualRank]) -> None:
        self._ranks = ranks
        self.pinned: dict[int, Sequence[bytes]] = {}

    def leading(self, chain: Sequence[bytes]) -> int:
        """Blocks of the chain that are cached without a gap."""
        if not chain:
            return 0
        width = len(self._ranks)
        first_missing = len(chain)
        for rank, start in self._owners(chain):
            there = rank.pool.leading(chain[start::width])
            first_missing = min(first_missing, start + there * width)
        return first_missing

    def settle(self, chain: Sequence[bytes]) -> int:
        """Settle those of the chain's blocks that are pending, and say how many they were."""
        settled = 0
        for rank in self._ranks:
            if rank.pending:
                before = len(rank.pending)
                rank.pending.difference_update(chain)
                settled += before - len(rank.pending)
        return settled

    def use(self, chain: Sequence[bytes]) -> list[BlocksChanged]:
        """Store the chain, and report what changed on each rank."""
        if not chain:
            return []
        width, parents = len(self._ranks), [ROOT, *chain[:-1]]
        reports = [
            rank.use(chain[start::width], parents[start::width])
            for rank, start in self._owners(chain)
        ]
        return [report for report in reports if report is not None]

    def reclaim(self, blocks: Sequence[bytes]) -> list[BlocksChanged]:
        """Delete blocks, but for pinned ones."""
        pinned = set().union(*self.pinned.values())
        blocks = [block for block in blocks if block not in pinned]
        reports = (rank.reclaim(blocks) for rank in self._ranks)
        return [report for report in reports if report is not None]

    def _owners(self, chain: Sequence[bytes]) -> list[tuple[VirtualRank, int]]:
        """Each rank with the index of the first block it owns."""
        width = len(self._ranks)
        turn = rotation(chain[0], width)
        return [(rank, (k - turn) % width) for k, rank in enumerate(self._ranks)]
