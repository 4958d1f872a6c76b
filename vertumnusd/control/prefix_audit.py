"""What the prefix trie believes of each rank: to rebuild it elsewhere, and to check it.

A rank's claims are exact: all that it reported and has not evicted, also blocks that wait for their
parents and so count for no prefix. Both ways cost the size of the trie; they are for operators, for
tests, and for a successor that starts from a file, not for every request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from vertumnusd.control.pending_blocks import split
from vertumnusd.control.prefix_trie import PrefixTrie
from vertumnusd.messages import BlocksChanged, BlocksHeld


class Differences(NamedTuple):
    """Blocks that the trie claims and the rank lacks; blocks that the rank has unknown to it."""

    wrong: frozenset[bytes]
    missing: frozenset[bytes]


def audit(trie: PrefixTrie, rank: int, held: bytes) -> Differences:
    """Compare with ``held``, the names of all blocks in the rank's pool, laid end to end."""
    claimed = {block for _, block in trie.claims(rank)}
    present = set(split(held))
    return Differences(frozenset(claimed - present), frozenset(present - claimed))


class RankAudit:
    """One rank's answer, part by part, against what the trie claimed when it began.

    The trie takes each part in as well, so what was wrong is right afterwards.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.differences: Differences | None = None  # once the last part has come
        self.held_blocks = 0
        self._claimed: frozenset[bytes] = frozenset()
        self._held: set[bytes] = set()

    def hear(self, trie: PrefixTrie, part: BlocksHeld) -> None:
        """To be called before the trie hears it."""
        if part.first:
            self._claimed = frozenset(block for _, block in trie.claims(part.rank))
            self._held.clear()
        self._held.update(split(part.blocks)[1::2])
        if part.last:
            self.held_blocks = len(self._held)
            self.differences = Differences(
                self._claimed - self._held, frozenset(self._held - self._claimed)
            )


def reports(trie: PrefixTrie) -> Iterator[BlocksChanged]:
    """One report of each rank: a new trie that applies them goes on where this one is.

    The counts of the pools are not known to the trie, and left at 0.
    """
    for rank, version in enumerate(trie.versions):
        if version:
            stored = b"".join(parent + block for parent, block in trie.claims(rank))
            yield BlocksChanged(rank, version, stored, b"", 0, 0, 0)
