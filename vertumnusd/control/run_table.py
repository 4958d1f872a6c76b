"""Runs of the prefix trie: pieces of a chain whose blocks have the same holders.

A table with an array for each column: however many runs there are, the garbage collector sees none
of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

from vertumnusd.control.holder_masks import NOBODY

NONE: Final = -1  # no run, no node
ROWS: Final = 256  # made at a time


class RunTable:
    """Nodes ``start`` … ``stop - 1`` are the blocks of a run, in the order of their chain.

    Numbers below ``room`` belong to the run too, for blocks that will follow. ``up`` is the node
    that it hangs from, the last of another run; NONE where a chain begins. ``depth`` and ``lane``
    (``block_runs.py``) are those of the first block, ``holders`` is a number of ``HolderMasks``.
    The runs that hang from one are in a list: ``first_child``, ``next``, ``previous``.
    """

    def __init__(self) -> None:
        self.start = array("i")
        self.stop = array("i")
        self.room = array("i")
        self.up = array("i")
        self.depth = array("i")
        self.lane = array("i")
        self.holders = array("i")
        self.first_child = array("i")
        self.next = array("i")
        self.previous = array("i")
        self._free = array("i")

    def __len__(self) -> int:
        return len(self.start) - len(self._free)

    def rows(self) -> range:
        """Runs and free rows; the latter have no blocks, and nothing hangs from them."""
        return range(len(self.start))

    def new(self, start: int, room: int, up: int, depth: int, lane: int) -> int:
        """A run without blocks and holders, in no list yet, from which nothing hangs."""
        if not self._free:
            self._make_rows()
        run = self._free.pop()
        self.start[run] = start
        self.stop[run] = start
        self.room[run] = room
        self.up[run] = up
        self.depth[run] = depth
        self.lane[run] = lane
        self.holders[run] = NOBODY
        return run

    def free(self, run: int) -> None:
        self.stop[run] = self.start[run]
        self.first_child[run] = NONE
        self._free.append(run)

    def _make_rows(self) -> None:
        made = len(self.start)
        for column in self._columns():
            column.extend(array("i", [NONE]) * ROWS)
        self._free.extend(range(made + ROWS - 1, made - 1, -1))

    def hang(self, run: int, parent: int) -> None:
        """Put ``run`` into the list of ``parent``."""
        first = self.first_child[parent]
        self.next[run] = first
        self.previous[run] = NONE
        if first != NONE:
            self.previous[first] = run
        self.first_child[parent] = run

    def unhang(self, run: int, parent: int) -> None:
        before, after = self.previous[run], self.next[run]
        if before != NONE:
            self.next[before] = after
        else:
            self.first_child[parent] = after
        if after != NONE:
            self.previous[after] = before

    def children(self, run: int) -> Iterator[int]:
        child = self.first_child[run]
        while child != NONE:
            yield child
            child = self.next[child]

    def memory_bytes(self) -> int:
        return sum(4 * len(column) for column in (*self._columns(), self._free))

    def _columns(self) -> tuple[array[int], ...]:
        return (
            *(self.start, self.stop, self.room, self.up, self.depth, self.lane, self.holders),
            *(self.first_child, self.next, self.previous),
        )
