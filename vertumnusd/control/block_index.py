"""From a block's name to its node: a hash table in one array, 8 to 32 bytes a block.

Open addressing with linear probing. A name is a hash already, so its lower half says where to look.
Nothing is ever taken out: a slot whose node is gone, or has another name by now, is passed by. When
half of the slots are used, a fresh table is filled from the live nodes, a chunk with every
insertion, and takes over when it is complete; so nothing ever waits for a large table to grow.

A walk down the trie asks for few blocks only; these are inserted at once (``enter``). The others
wait (``add``), and are inserted together, several times faster, when there are many of them or an
update asks for a block by name alone (``find_any``).
"""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt

GONE = -1  # in ``run_of``: there is no such node
NOT_FOUND = -2  # -1 is the parent of first blocks

SMALLEST = 1 << 16  # slots of a table
WAITING = SMALLEST >> 3  # nodes to be inserted together, at the most
CHUNK = 1 << 14  # node numbers looked at for a fresh table, with an insertion, at the least
SINGLY = 24  # so few nodes are inserted faster one by one

Nodes = npt.NDArray[np.int32]


class BlockIndex:
    """``names`` has two words for each node; ``run_of`` is GONE where there is none."""

    def __init__(self, names: array[int], run_of: array[int]) -> None:
        self._names = names
        self._run_of = run_of
        self._waiting = array("i")  # first node and count, in turn
        self._waiting_count = 0
        self._table = _Table(SMALLEST)
        self._fresh: _Table | None = None
        self._copied = 0  # nodes with smaller numbers are in the fresh table

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
        if self._fresh is not None or 2 * table.used >= table.size:
            self._insert_fresh(np.array([node], np.int32))

    def enter_run(self, start: int, count: int) -> None:
        """Insert the first and the last of these nodes; the others when they are asked for."""
        self.enter(start)
        if count > 1:
            self.enter(start + count - 1)
            self._waiting.append(start + 1)
            self._waiting.append(count - 2)
            self._waiting_count += count - 2
            if self._waiting_count >= WAITING:
                self._insert_waiting()

    def memory_bytes(self) -> int:
        return 4 * (self._table.size + (self._fresh.size if self._fresh else 0))

    def _insert_waiting(self) -> None:
        starts, counts = np.array(self._waiting, np.int32).reshape(-1, 2).T
        first = np.cumsum(counts) - counts
        nodes = np.repeat(starts - first, counts) + np.arange(self._waiting_count)
        self._waiting, self._waiting_count = array("i"), 0
        if len(nodes) <= SINGLY:
            for node in nodes.tolist():
                self.enter(node)
            return
        for at in range(0, len(nodes), WAITING):
            part = nodes[at : at + WAITING].astype(np.int32)
            self._insert(self._table, part)
            if self._fresh is not None or 2 * self._table.used >= self._table.size:
                self._insert_fresh(part)

    def _insert(self, table: _Table, nodes: Nodes) -> None:
        table.insert_all(np.frombuffer(self._names, np.uint64)[::2][nodes], nodes)

    def _insert_fresh(self, nodes: Nodes) -> None:
        """Insert nodes into the fresh table too, and copy to it what was there before them.

        It takes over before an eighth of the old slots is filled meanwhile.
        """
        if self._fresh is None:
            self._fresh, self._copied = _Table(self._enough_slots()), 0
        self._insert(self._fresh, nodes[nodes < self._copied])
        share = 8 * len(nodes) * len(self._run_of) // self._table.size
        start, self._copied = self._copied, self._copied + max(CHUNK, share)
        runs = np.frombuffer(self._run_of, np.int32)[start : self._copied]
        live = np.flatnonzero(runs != GONE) + start
        self._insert(self._fresh, live.astype(np.int32))
        if self._copied >= len(self._run_of):
            self._table, self._fresh = self._fresh, None

    def _enough_slots(self) -> int:
        """Four to eight for each live node."""
        live = np.count_nonzero(np.frombuffer(self._run_of, np.int32) != GONE)
        return max(SMALLEST, 4 << int(live - 1).bit_length())


class _Table:
    """Slots with node numbers plus one; 0 is an empty slot."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.mask = size - 1
        self.used = 0
        self._array = np.zeros(size, np.int32)
        self.slots = self._array.data  # ten times faster, one slot at a time

    def insert_all(self, lows: npt.NDArray[np.uint64], nodes: Nodes) -> None:
        """Every node takes the slot that it wants next; who finds it taken wants the one behind."""
        self.used += len(nodes)
        wanted = (lows & np.uint64(self.mask)).astype(np.intp)
        marks = nodes + np.int32(1)
        while len(marks):
            empty = self._array[wanted] == 0
            self._array[wanted[empty]] = marks[empty]
            left = np.flatnonzero(self._array[wanted] != marks)
            marks, wanted = marks[left], (wanted[left] + 1) & self.mask
