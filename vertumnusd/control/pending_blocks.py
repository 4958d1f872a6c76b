"""Blocks that ranks hold while the block before them is not in the trie.

The ranks of a home report the blocks of one prefill separately, each the blocks of its lane, and a
report may be missing altogether. Until the parent of a block is in the trie the block waits here,
and nobody claims it.
"""

from __future__ import annotations

from collections.abc import Iterator

from vertumnusd.messages import HASH_BYTES


class PendingBlocks:
    """``ranks`` tells who holds a block; the blocks that wait for the same parent are laid end to
    end."""

    def __init__(self, ranks: int, home_ranks: int) -> None:
        self.ranks: dict[bytes, int] = {}
        self._parents: dict[bytes, bytes] = {}
        self._waiting: dict[bytes, bytes] = {}
        self._last_lane = home_ranks - 1
        self._last_ranks = sum(1 << rank for rank in range(self._last_lane, ranks, home_ranks))

    def __len__(self) -> int:
        return len(self.ranks)

    def __contains__(self, parent: bytes) -> bool:
        """Whether a block waits for this one."""
        return parent in self._waiting

    def __iter__(self) -> Iterator[tuple[bytes, bytes, int]]:
        """Parent, name and ranks of every block."""
        for block, ranks in self.ranks.items():
            yield self._parents[block], block, ranks

    def add(self, rank: int, parent: bytes, block: bytes) -> None:
        if block not in self.ranks:
            self._parents[block] = parent
            self._waiting[parent] = self._waiting.get(parent, b"") + block
        self.ranks[block] = self.ranks.get(block, 0) | 1 << rank

    def remove(self, rank: int, block: bytes) -> None:
        remaining = self.ranks.get(block, 0) & ~(1 << rank)
        if remaining:
            self.ranks[block] = remaining
        elif block in self.ranks:
            parent = self._parents[block]
            others = [other for other in split(self._waiting[parent]) if other != block]
            self._forget(block)
            if others:
                self._waiting[parent] = b"".join(others)
            else:
                del self._waiting[parent]

    def drop(self, rank: int) -> None:
        for block in [block for block, ranks in self.ranks.items() if ranks >> rank & 1]:
            self.remove(rank, block)

    def take(self, parent: bytes) -> Iterator[tuple[int, bytes]]:
        """Take away what waits for ``parent``, and the chains behind it: ranks and chain of each.

        A chain goes on while one block follows that is held by the next lane of the same homes.
        """
        for block in split(self._waiting.pop(parent)):
            everyone = ranks = self._forget(block)
            chain = [block]
            while len(after := self._waiting.get(block, b"")) == HASH_BYTES:
                ranks = self._next_lane(ranks)
                if self.ranks[after] != ranks:
                    break
                del self._waiting[block]
                self._forget(after)
                everyone |= ranks
                chain.append(after)
                block = after
            yield everyone, b"".join(chain)

    def _forget(self, block: bytes) -> int:
        del self._parents[block]
        return self.ranks.pop(block)

    def _next_lane(self, ranks: int) -> int:
        last = ranks & self._last_ranks
        return (ranks ^ last) << 1 | last >> self._last_lane


def split(chain: bytes) -> list[bytes]:
    return [chain[at : at + HASH_BYTES] for at in range(0, len(chain), HASH_BYTES)]
