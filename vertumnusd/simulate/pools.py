"""A pool of KV blocks with least-recently-used eviction, as a rank or a baseline's worker has it.

The blocks of one use are marked deepest first, so a child is always evicted before its parent and
what stays of a chain is a prefix. Room that a running request takes is found when its blocks are
stored: one request runs at a time on a pool, and its working room is not counted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

B = TypeVar("B", bound=Hashable)


class Pool(Generic[B]):
    __slots__ = ("_blocks", "_capacity")

    def __init__(self, capacity: int) -> None:
        self._blocks: OrderedDict[B, None] = OrderedDict()  # next to evict first
        self._capacity = capacity

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block: B) -> bool:
        return block in self._blocks

    def leading(self, chain: Sequence[B]) -> int:
        """How many blocks of the chain are here before the first that is missing."""
        held = self._blocks
        for n, block in enumerate(chain):
            if block not in held:
                return n
        return len(chain)

    def use(self, chain: Sequence[B]) -> tuple[list[B], list[B]]:
        """Mark the chain as used now, storing what is missing. Returns stored and evicted blocks.

        Stored ones parents first. A chain longer than the pool loses its deepest blocks at once.
        """
        held = self._blocks
        chain = chain[: self._capacity]
        stored: list[B] = []
        for block in reversed(chain):
            if block in held:
                held.move_to_end(block)
            else:
                held[block] = None
                stored.append(block)
        stored.reverse()
        evicted = [held.popitem(last=False)[0] for _ in range(len(held) - self._capacity)]
        return stored, evicted

    def discard(self, block: B) -> bool:
        """Drop a block; False if it was not here."""
        if block not in self._blocks:
            return False
        del self._blocks[block]
        return True

    def blocks(self) -> list[B]:
        return list(self._blocks)
