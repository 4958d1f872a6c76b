"""The global prefix trie: which ranks hold which KV blocks, and the longest prefix of each home.

A block is named by a chained hash, so its name alone fixes the path from the root to it, and the
trie needs no nodes or edges: one dict from block to holders, a bit for each rank, is all of
it. A walk along a request's chain is a walk down the trie. It lives outside the garbage
collector's sight (dicts of bytes and ints are not tracked), which with a million blocks
matters more than anything else.

Consistency: blocks come and go one by one, from several ranks, in any order between ranks. A block
whose parent is not held (evicted in between, or not reported yet by the rank that owns it) stays
on record, and counts as soon as its whole path does; until then no walk reaches it. So the trie
never claims an incomplete path, and a block that no rank holds takes no memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from vertumnusd.control.errors import IllegalEvent
from vertumnusd.messages import HASH_BYTES, BlocksChanged

_BLOCK = struct.Struct(f"{HASH_BYTES}s")
_CHILD = struct.Struct(f"{HASH_BYTES}x{HASH_BYTES}s")  # a stored pair; the parent's name is implied


class PrefixTrie:
    """Holders of every block that some rank keeps.

    In a home of several ranks each block of a chain is owned, and so reported, by one of them: the
    home holds a block when any of its ranks reports it. Ranks are recorded, not homes, since
    a rank can be lost alone.
    """

    def __init__(self, ranks: int, home_ranks: int) -> None:
        self._home_ranks = home_ranks
        self._homes = sum(1 << base for base in range(0, ranks, home_ranks))
        self._holders: dict[bytes, int] = {}
        self._held: list[dict[bytes, None]] = [{} for _ in range(ranks)]
        self._versions = [0] * ranks

    def __len__(self) -> int:
        return len(self._holders)

    def apply(self, report: BlocksChanged) -> int:
        """Take a rank's report in, and return how many before it are missing.

        After a gap nothing older is known to be true: all that the rank held is forgotten, and the
        trie goes on with what this and later reports say. It then knows less than the rank holds,
        never more. A repeated report, with a negative count, is ignored.
        """
        if len(report.stored) % _CHILD.size or len(report.evicted) % _BLOCK.size:
            raise IllegalEvent(f"rank {report.rank} reported blocks of odd length")
        rank = report.rank
        missing = report.version - self._versions[rank] - 1
        if missing < 0:
            return missing
        if missing > 0:
            self.drop_rank(rank)
        self._versions[rank] = report.version
        for (block,) in _CHILD.iter_unpack(report.stored):
            self._holders[block] = self._holders.get(block, 0) | 1 << rank
            self._held[rank][block] = None
        for (block,) in _BLOCK.iter_unpack(report.evicted):
            if block in self._held[rank]:
                del self._held[rank][block]
                self._clear(block, rank)
        return missing

    def drop_rank(self, rank: int) -> None:
        """Forget all that a lost rank held; its successor starts empty, at version 1."""
        for block in self._held[rank]:
            self._clear(block, rank)
        self._held[rank] = {}
        self._versions[rank] = 0

    def match(self, chain: bytes) -> dict[int, int]:
        """Blocks of the longest complete prefix, by base rank of the home; none for homes without.

        One walk for all homes, which ends where the last home does.
        """
        alive = self._homes
        lengths: dict[int, int] = {}
        for depth, (block,) in enumerate(_BLOCK.iter_unpack(chain)):
            ended = alive & ~self._homes_of(self._holders.get(block, 0))
            if ended:
                if depth:
                    lengths.update((base, depth) for base in _bits(ended))
                alive ^= ended
                if not alive:
                    return lengths
        if chain:
            lengths.update((base, len(chain) // HASH_BYTES) for base in _bits(alive))
        return lengths

    def _homes_of(self, holders: int) -> int:
        """From a bit for each rank to a bit, at its base rank, for each home."""
        folded = holders
        for rank in range(1, self._home_ranks):
            folded |= holders >> rank
        return folded & self._homes

    def _clear(self, block: bytes, rank: int) -> None:
        remaining = self._holders[block] & ~(1 << rank)
        if remaining:
            self._holders[block] = remaining
        else:
            del self._holders[block]


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
