"""A pool of KV blocks with least-recently-used eviction, as a rank or a baseline's worker has it.

The deepest blocks of a use are evicted first, so a child always goes before its parent and what
stays of a chain is a prefix. Room that a running request takes is found when its blocks are
stored: one request runs at a time on a pool, and its working room is not counted.

A use is noted as a whole: nothing is moved for each of its blocks. Every block has the number of
its last use, and what an older note says of it is passed by.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

B = TypeVar("B", bound=Hashable)


class Pool(Generic[B]):
    __slots__ = ("_capacity", "_last_use", "_noted", "_oldest", "_oldest_use", "_use", "_uses")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._last_use: dict[B, int] = {}  # of every block that is here
        self._use = 0
        self._uses: deque[tuple[int, Sequence[B]]] = deque()  # with their chains, the oldest first
        self._oldest_use = 0  # the one whose blocks are next to be evicted …
        self._oldest: list[B] = []  # … and those of them that are left, the deepest last
        self._noted = 0  # blocks in all the notes

    def __len__(self) -> int:
        return len(self._last_use)

    def __contains__(self, block: B) -> bool:
        return block in self._last_use

    def leading(self, chain: Sequence[B]) -> int:
        """How many blocks of the chain are here before the first that is missing."""
        held = self._last_use
        for n, block in enumerate(chain):
            if block not in held:
                return n
        return len(chain)

    def use(self, chain: Sequence[B]) -> tuple[list[int], list[B]]:
        """Mark the chain as used now, storing what is missing.

        Returns where in the chain the stored blocks stand, in order, and the evicted blocks. A
        chain longer than the pool loses its deepest blocks at once.
        """
        held = self._last_use
        chain = chain[: self._capacity]
        stored: list[int] = []
        self._use = use = self._use + 1
        for n, block in enumerate(chain):
            if block not in held:
                stored.append(n)
            held[block] = use
        self._uses.append((use, chain))
        self._noted += len(chain)
        evicted = self._evict() if len(held) > self._capacity else []
        if self._noted > 2 * self._capacity:
            self._forget_old_notes()
        return stored, evicted

    def discard(self, block: B) -> bool:
        """Drop a block; False if it was not here."""
        return self._last_use.pop(block, 0) > 0

    def blocks(self) -> list[B]:
        return list(self._last_use)

    def _evict(self) -> list[B]:
        """Make room for all that is here."""
        held, evicted = self._last_use, []
        for _ in range(len(held) - self._capacity):
            block = self._next_to_evict()
            del held[block]
            evicted.append(block)
        return evicted

    def _next_to_evict(self) -> B:
        held = self._last_use
        while True:
            while not self._oldest:
                self._oldest_use, chain = self._uses.popleft()
                self._oldest = list(chain)
            block = self._oldest.pop()
            self._noted -= 1
            if held.get(block) == self._oldest_use:
                return block

    def _forget_old_notes(self) -> None:
        """Keep of each use what was not used again: then no block is noted twice."""
        held = self._last_use
        notes = [(self._oldest_use, self._oldest), *self._uses]
        last = [(use, [b for b in chain if held.get(b) == use]) for use, chain in notes]
        self._uses = deque((use, chain) for use, chain in last if chain)
        self._oldest = []
        self._noted = len(held)
