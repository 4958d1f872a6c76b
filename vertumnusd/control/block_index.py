"""From a block's name to its node: a hash table in one array, 8 to 64 bytes a block.

Open addressing with linear probing. A name is a hash already, so its lower half says where to look.
Nothing is ever taken out: a slot whose node is gone, or has another name by now, is passed by. When
half of the slots are used, another table is filled from the live ones, some with every insertion
and in their order, and takes over when it has all. So nothing ever waits for a large table to grow,
nor for the system to provide all of its memory.

A walk down the trie asks for few blocks only; these are inserted at once. The others wait, and are
inserted together, several times faster, when there are many of them or an update asks for a block
by name alone (``find_any``).
"""

from __future__ import annotations

import mmap
from array import array
from typing import Final

import numpy as np
import numpy.typing as npt

GONE: Final = -1  # in ``run_of``: there is no such node
NOT_FOUND: Final = -2  # -1 is the parent of first blocks

SMALLEST: Final = 1 << 16  # slots of a table
WAITING: Final = SMALLEST >> 3  # nodes to be inserted together, at the most
CHUNK: Final = 1 << 14  # slots to be copied to the next table with every insertion, at the least
SINGLY: Final = 128  # so few nodes are inserted faster one by one

Nodes = npt.NDArray[np.int32]


class BlockIndex:
    """``names`` has two words for each node; ``run_of`` is GONE where there is none."""

    def __init__(self, names: array[int], run_of: array[int]) -> None:
        self._names = names
        self._run_of = run_of
        self._waiting = array("i")  # first node and count, in turn
        self._waiting_count = 0
        self._table = _Table(SMALLEST)
        self._next: _Table | None = None
        self._copied = 0  # the slots before this are in the next table

    def find(self, low: int, high: int) -> int:
        """The node of this name, or NOT_FOUND, also if it waits."""
        slots, mask, names = self._table.slots, self._table.mask, self._names
        at = low & mask
        while slot := slots[at]:
            node: int = slot - 1
            same = names[2 * node] == low and names[2 * node + 1] == high
            if same and self._run_of[node] != GONE:
                return node
            at = (at + 1) & mask
        return NOT_FOUND

    def find_any(self, low: int, high: int) -> int:
        """The node of this name, whether it waits or not."""
        node = self.find(low, high)
        if node == NOT_FOUND and self._waiting:
            self._insert_waiting()
            node = self.find(low, high)
        return node

    def enter(self, node: int) -> None:
        """Insert a node at once."""
        table, low = self._table, self._names[2 * node]
        slots, mask, mark = table.slots, table.mask, node + 1
        at = low & mask
        while (slot := slots[at]) and slot != mark:
            at = (at + 1) & mask
        if not slot:
            slots[at] = mark
            table.used += 1
        if self._next is not None or table.used >= table.enough:
            self._enlarge(np.array([node], np.int32))

    def enter_run(self, start: int, count: int) -> None:
        """Insert the first and the last of these nodes at once, the others when asked for."""
        self.enter(start)
        if count > 1:
            self.enter(start + count - 1)
            self._waiting.append(start + 1)
            self._waiting.append(count - 2)
            self._waiting_count += count - 2
            if self._waiting_count >= WAITING:
                self._insert_waiting()

    def memory_bytes(self) -> int:
        return 4 * (self._table.size + (self._next.size if self._next else 0))

    def _insert_waiting(self) -> None:
        starts, counts = self._waiting[::2], self._waiting[1::2]
        total = self._waiting_count
        self._waiting, self._waiting_count = array("i"), 0
        if total <= SINGLY:
            for start, count in zip(starts, counts, strict=True):
                for node in range(start, start + count):
                    self.enter(node)
            return
        skipped = np.array(starts) - (np.cumsum(counts) - counts)
        nodes = (np.repeat(skipped, counts) + np.arange(total)).astype(np.int32)
        for at in range(0, total, WAITING):
            part = nodes[at : at + WAITING]
            self._insert(self._table, part)
            if self._next is not None or self._table.used >= self._table.enough:
                self._enlarge(part)

    def _insert(self, table: _Table, nodes: Nodes) -> None:
        table.insert_all(self._lows(nodes), nodes)

    def _lows(self, nodes: Nodes) -> npt.NDArray[np.uint64]:
        lows: npt.NDArray[np.uint64] = np.frombuffer(self._names, np.uint64)[::2][nodes]
        return lows

    def _enlarge(self, inserted: Nodes) -> None:
        """Copy some more slots, four for each of these nodes, that have just been inserted.

        So it is done before a quarter of the slots is filled meanwhile.
        """
        if self._next is None:
            self._next, self._copied = _Table(self._enough_slots()), 0
        passed = (self._lows(inserted) & np.uint64(self._table.mask)) < self._copied
        self._insert(self._next, inserted[passed])
        start, self._copied = self._copied, self._copied + max(CHUNK, 4 * len(inserted))
        self._copy(self._table.marks[start : self._copied])
        if self._copied >= self._table.size:
            # whoever wanted one of the last slots may have found it free only among the first
            self._copy(self._table.marks[: self._table.first_empty()])
            self._table, self._next = self._next, None

    def _copy(self, marks: Nodes) -> None:
        assert self._next is not None
        nodes = marks[marks != 0] - np.int32(1)
        live = np.frombuffer(self._run_of, np.int32)[nodes] != GONE
        self._insert(self._next, nodes[live])

    def _enough_slots(self) -> int:
        """Eight to sixteen for each live node."""
        live = np.count_nonzero(np.frombuffer(self._run_of, np.int32) != GONE)
        return max(SMALLEST, 8 << int(live - 1).bit_length())


class _Table:
    """Slots with node numbers plus one; 0 is an empty slot.

    Memory comes straight from the system: page by page, as it is used.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.mask = size - 1
        self.used = 0
        self.enough = size // 2  # it is time for another table
        memory = mmap.mmap(-1, 4 * size)
        self.marks = np.frombuffer(memory, np.int32)
        self.slots = self.marks.data  # ten times faster, one slot at a time

    def first_empty(self) -> int:
        return int(np.argmin(self.marks != 0))

    def insert_all(self, lows: npt.NDArray[np.uint64], nodes: Nodes) -> None:
        """Every node takes the slot that it wants next; who finds it taken wants the one behind."""
        self.used += len(nodes)
        wanted = (lows & np.uint64(self.mask)).astype(np.intp)
        marks = nodes + np.int32(1)
        while len(marks):
            empty = self.marks[wanted] == 0
            self.marks[wanted[empty]] = marks[empty]
            left = np.flatnonzero(self.marks[wanted] != marks)
            marks, wanted = marks[left], (wanted[left] + 1) & self.mask
