"""The tree under the prefix trie: blocks as numbered nodes, in runs with the same holders.

A chain is a path of runs. Where its holders do not change it is one run, however long: new blocks
get consecutive numbers, and neighbours that come to have the same holders are joined. A run ends
where chains branch or holders differ.

In a home of several ranks the blocks of a chain belong to these in turn (``layout.py``); the *lane*
of a block says to which. A rank among the holders of a run holds the blocks of its own lane, so a
chain stays one run although its ranks alternate, and a home has all of a run if the ranks of all
lanes are among the holders. A rank is never taken to hold a block of another lane.

The parent of every node is a node: a block that nobody holds keeps its place as long as one behind
it is held, and no longer.
"""

from __future__ import annotations

import functools
import operator
from array import array
from collections.abc import Iterator

import numpy as np

from vertumnusd.control.block_index import GONE, NOT_FOUND, BlockIndex
from vertumnusd.control.holder_masks import HolderMasks
from vertumnusd.control.node_numbers import NodeNumbers
from vertumnusd.control.run_table import NONE, RunTable
from vertumnusd.layout import rotation
from vertumnusd.messages import HASH_BYTES


class BlockRuns:
    """``names`` has two words for each node, ``run_of`` its run. Masks have a bit for each rank."""

    def __init__(self, ranks: int, home_ranks: int) -> None:
        self.names = array("Q")
        self.run_of = array("i")
        self.index = BlockIndex(self.names, self.run_of)
        self.runs = RunTable()
        self.holders = HolderMasks(ranks, home_ranks)
        self.blocks = 0
        self.home_ranks = home_ranks
        self.homes = sum(1 << base for base in range(0, ranks, home_ranks))
        self._lanes = [self.homes << lane for lane in range(home_ranks)]  # the ranks of each
        self._everyone = (1 << ranks) - 1
        self._numbers = NodeNumbers()

    # --- what there is

    def name(self, node: int) -> bytes:
        return self.names[2 * node : 2 * node + 2].tobytes()

    def named(self, start: bytes) -> list[bytes]:
        """Blocks whose names begin with these bytes. Goes through all of them, in one sweep."""
        names = np.frombuffer(self.names, np.uint8).reshape(-1, HASH_BYTES)
        wanted = np.frombuffer(start, np.uint8)
        nodes = np.flatnonzero((names[:, : len(start)] == wanted).all(axis=1)).tolist()
        return [self.name(node) for node in nodes if self.run_of[node] != GONE]

    def parent(self, node: int) -> int:
        """The node before it; NONE for the first of a chain."""
        run = self.run_of[node]
        return node - 1 if node > self.runs.start[run] else self.runs.up[run]

    def children(self, node: int) -> Iterator[int]:
        run = self.run_of[node]
        if node + 1 < self.runs.stop[run]:
            yield node + 1
            return
        for child in self.runs.children(run):
            yield self.runs.start[child]

    def depth(self, node: int) -> int:
        run = self.run_of[node]
        return self.runs.depth[run] + node - self.runs.start[run]

    def mask(self, run: int) -> int:
        return self.holders.masks[self.runs.holders[run]]

    def ranks_at(self, node: int) -> int:
        """Ranks that hold this block, whether or not their homes have those before it."""
        return self.mask(self.run_of[node]) & self._lanes[self._lane(node)]

    def homes_at(self, node: int) -> int:
        """Homes that hold the whole path to this block: a bit for the first rank of each."""
        homes = self.homes
        while node != NONE and homes:
            run = self.run_of[node]
            length, lanes = node + 1 - self.runs.start[run], self.home_ranks
            if length >= lanes:
                homes &= self.holders.homes[self.runs.holders[run]]
            else:
                mask, lane = self.mask(run), self.runs.lane[run]
                for step in range(length):
                    homes &= mask >> (lane + step) % lanes
            node = self.runs.up[run]
        return homes

    def held_by(self, rank: int) -> Iterator[int]:
        """Every block that the rank holds, none before those on its path."""
        runs = self.runs
        for run in sorted(runs.rows(), key=runs.depth.__getitem__):
            if self.mask(run) >> rank & 1:
                skipped = (rank - runs.lane[run]) % self.home_ranks
                yield from range(runs.start[run] + skipped, runs.stop[run], self.home_ranks)

    def lane_masks(self, node: int, length: int) -> list[int]:
        """Of ``length`` blocks of a run from ``node`` on: the holders of the first of each lane.

        Shifted so that the bit of a home is that of its first rank; other bits mean nothing.
        """
        mask, lane, lanes = self.mask(self.run_of[node]), self._lane(node), self.home_ranks
        return [mask >> (lane + step) % lanes for step in range(min(length, lanes))]

    def common(self, node: int, chain: bytes, block: int) -> int:
        """How many blocks from ``block`` on are those from ``node`` on, of which the first is.

        One comparison, if all of the run or of the chain are. Else halving finds where they part:
        names stand for paths, so what differs once differs to the end.
        """
        names, at = self.names, HASH_BYTES * block
        most = min(self.runs.stop[self.run_of[node]] - node, len(chain) // HASH_BYTES - block)
        if most == 1 or chain.startswith(names[2 * node : 2 * (node + most)], at):
            return most
        equal, unequal = 1, most
        while equal + 1 < unequal:
            tried = (equal + unequal) // 2
            if chain.startswith(names[2 * node : 2 * (node + tried)], at):
                equal = tried
            else:
                unequal = tried
        return equal

    def memory_bytes(self) -> int:
        return (
            len(self.names) * self.names.itemsize
            + len(self.run_of) * self.run_of.itemsize
            + self.index.memory_bytes()
            + self.runs.memory_bytes()
        )

    # --- blocks come

    def store(self, ranks: int, parent: int, chain: bytes) -> None:
        """``ranks`` hold the blocks of ``chain``, which follow ``parent``, each those it owns."""
        words = memoryview(chain).cast("Q")
        block, count = 0, len(words) // 2
        while block < count:
            node = self._child(parent, words[2 * block], words[2 * block + 1])
            if node == NOT_FOUND:
                self._append(ranks, parent, chain[HASH_BYTES * block :])
                return
            length = self.common(node, chain, block)
            self._add(ranks, node, node + length)
            block += length
            parent = node + length - 1

    def _child(self, parent: int, low: int, high: int) -> int:
        """The node of this name behind ``parent``: the next of its run, or the first of another."""
        after, names = parent + 1, self.names
        inside = parent != NONE and after < self.runs.stop[self.run_of[parent]]
        if inside and names[2 * after] == low and names[2 * after + 1] == high:
            return after
        return self.index.find(low, high)

    def _add(self, ranks: int, start: int, stop: int) -> None:
        """Add holders to nodes of one run."""
        mask = self.mask(self.run_of[start])
        added = mask | (ranks & self._lanes_of(start, stop))
        if added != mask:
            run = self._cut(start)
            if stop < self.runs.stop[run]:
                self._cut(stop)
            self._set(run, added)
            self._join_around(run)

    def _append(self, ranks: int, parent: int, chain: bytes) -> None:
        """New blocks behind ``parent``."""
        depth, lane = self._behind(parent, chain)
        if parent != NONE and parent + 1 < self.runs.stop[self.run_of[parent]]:
            self._cut(parent + 1)
        while chain:
            start, room = self._place(parent, len(chain) // HASH_BYTES)
            part = chain[: HASH_BYTES * (room - start)]
            run = self.runs.new(start, room, parent, depth, lane)
            self._fill(run, ranks, part)
            chain = chain[len(part) :]
            depth += len(part) // HASH_BYTES
            lane = (lane + len(part) // HASH_BYTES) % self.home_ranks
            parent = start + len(part) // HASH_BYTES - 1
        if self.home_ranks > 1:
            self.tidy(self.run_of[parent])  # perhaps none of these ranks owns the last

    def _behind(self, parent: int, chain: bytes) -> tuple[int, int]:
        """Depth and lane of the first block of ``chain``."""
        if parent == NONE:
            return 0, rotation(chain, self.home_ranks)
        run = self.run_of[parent]
        ahead = parent + 1 - self.runs.start[run]
        return self.runs.depth[run] + ahead, (self.runs.lane[run] + ahead) % self.home_ranks

    def _place(self, parent: int, count: int) -> tuple[int, int]:
        """First number and end of the room for new blocks: behind the parent, or elsewhere.

        A chain that grows little by little gets ever more of it, so that its runs stay few.
        """
        runs = self.runs
        if parent != NONE:
            run = self.run_of[parent]
            start, stop, room = runs.start[run], runs.stop[run], runs.room[run]
            if stop < room:
                runs.room[run] = stop
                return stop, room
            if runs.first_child[run] == NONE:
                count = max(count, 2 * (stop - start))
        numbers = self._numbers.take(count)
        new = self._numbers.limit - len(self.run_of)
        if new:
            self.names.frombytes(bytes(HASH_BYTES * new))
            self.run_of.extend(array("i", [GONE]) * new)
        return numbers.start, numbers.stop

    def _fill(self, run: int, ranks: int, chain: bytes) -> None:
        """Put blocks into a new run, hang it up, and join it with its parent if that can be."""
        runs, count = self.runs, len(chain) // HASH_BYTES
        start = runs.start[run]
        stop = runs.stop[run] = start + count
        self.names[2 * start : 2 * stop] = array("Q", chain)
        self.run_of[start:stop] = array("i", [run]) * count
        self.blocks += count
        runs.holders[run] = self.holders.use(ranks & self._lanes_of(start, stop))
        self.index.enter_run(start, count)
        parent = runs.up[run]
        if parent != NONE:
            runs.hang(run, self.run_of[parent])
            if parent + 1 == start:
                self._join(self.run_of[parent], run)

    # --- blocks go

    def evict(self, rank: int, first: int, last: int) -> None:
        """``rank`` holds no longer what it owns from ``first`` to ``last``, blocks of one run."""
        if self.ranks_at(first) >> rank & 1:
            run = self._cut(first)
            if last + self.home_ranks < self.runs.stop[run]:
                self._cut(last + 1)
            self._set(run, self.mask(run) & ~(1 << rank))
            self.tidy(self._join_around(run))

    def owned_before(self, node: int, words: memoryview, at: int) -> int:
        """How many of these names, from index ``at`` on, are those before ``node`` in its run.

        Not of all blocks, but of those of the same lane, from the node backwards.
        """
        names, step, word = self.names, self.home_ranks, 2 * at
        start = self.runs.start[self.run_of[node]]
        before = node - step
        while (
            before >= start
            and word < len(words)
            and names[2 * before] == words[word]
            and names[2 * before + 1] == words[word + 1]
        ):
            before -= step
            word += 2
        return word // 2 - at

    def wipe(self, rank: int) -> None:
        """``rank`` holds nothing any more. The runs are to be tidied, all of them, any time."""
        self.holders.wipe(rank)

    def tidy(self, run: int) -> None:
        """Give up what nobody holds at the end of a chain; join what has the same holders."""
        while run != NONE:
            child = self.runs.first_child[run]
            if child != NONE:
                if not self._join(run, child):
                    return
                continue
            start, stop = self._held_to(run), self.runs.stop[run]
            if start == stop:
                return
            self.run_of[start:stop] = array("i", [GONE]) * (stop - start)
            self.runs.stop[run] = start
            self.blocks -= stop - start
            if start > self.runs.start[run]:
                return
            run = self._remove(run)

    def _held_to(self, run: int) -> int:
        """Behind the last held block of a run: one of its last few, or none at all."""
        start, stop, mask = self.runs.start[run], self.runs.stop[run], self.mask(run)
        for last in range(stop - 1, max(start, stop - self.home_ranks) - 1, -1):
            if mask & self._lanes[self._lane(last)]:
                return last + 1
        return start

    def _remove(self, run: int) -> int:
        """Remove an empty run. Returns the one it hung from."""
        up = self.runs.up[run]
        parent = NONE if up == NONE else self.run_of[up]
        if parent != NONE:
            self.runs.unhang(run, parent)
        self._numbers.give(self.runs.start[run], self.runs.room[run])
        self.holders.leave(self.runs.holders[run])
        self.runs.free(run)
        return parent

    # --- runs are cut and joined

    def _cut(self, node: int) -> int:
        """Have a run begin at ``node``; returns it."""
        run, runs = self.run_of[node], self.runs
        start, stop = runs.start[run], runs.stop[run]
        if node == start:
            return run
        rest = runs.new(node, runs.room[run], node - 1, self.depth(node), self._lane(node))
        runs.stop[rest] = stop
        runs.holders[rest] = self.holders.use_again(runs.holders[run])
        runs.first_child[rest] = runs.first_child[run]
        runs.first_child[run] = NONE
        runs.hang(rest, run)
        runs.stop[run] = runs.room[run] = node
        self.run_of[node:stop] = array("i", [rest]) * (stop - node)
        self.index.enter(node)
        return rest

    def _join_around(self, run: int) -> int:
        """Join a run with its neighbours where that can be. Returns what it is part of then."""
        up = self.runs.up[run]
        if up != NONE and self._join(self.run_of[up], run):
            run = self.run_of[up]
        self._join(run, self.runs.first_child[run])
        return run

    def _join(self, run: int, child: int) -> bool:
        """Join a run with the only one that hangs from it, if its numbers and holders follow on."""
        runs = self.runs
        if child == NONE or runs.next[child] != NONE or runs.first_child[run] != child:
            return False
        start, stop = runs.start[child], runs.stop[child]
        if start != runs.stop[run] or (mask := self._common_mask(run, child)) is None:
            return False
        self._set(run, mask)
        runs.stop[run], runs.room[run] = stop, runs.room[child]
        runs.first_child[run] = runs.first_child[child]
        self.run_of[start:stop] = array("i", [run]) * (stop - start)
        self.holders.leave(runs.holders[child])
        runs.free(child)
        return True

    def _common_mask(self, run: int, child: int) -> int | None:
        """What says of two runs together the same as their masks do; None if nothing does.

        A mask says nothing about lanes of which a short run has no block.
        """
        runs, ours, theirs = self.runs, self.mask(run), self.mask(child)
        if ours == theirs:
            return ours
        here = self._lanes_of(runs.start[run], runs.stop[run])
        there = self._lanes_of(runs.start[child], runs.stop[child])
        mask = (ours & here) | (theirs & there)
        return None if (mask ^ ours) & here or (mask ^ theirs) & there else mask

    def _set(self, run: int, mask: int) -> None:
        before = self.runs.holders[run]
        self.runs.holders[run] = self.holders.use(mask)
        self.holders.leave(before)

    def _lane(self, node: int) -> int:
        run = self.run_of[node]
        return (self.runs.lane[run] + node - self.runs.start[run]) % self.home_ranks

    def _lanes_of(self, start: int, stop: int) -> int:
        """The ranks of all lanes of which there is a block among these of one run."""
        if stop - start >= self.home_ranks:
            return self._everyone
        lane = self._lane(start)
        lanes = (self._lanes[(lane + step) % self.home_ranks] for step in range(stop - start))
        return functools.reduce(operator.or_, lanes)
