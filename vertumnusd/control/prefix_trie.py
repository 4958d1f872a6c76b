"""The global prefix trie: which ranks hold which KV blocks, and the longest prefix at each home.

A block is named by a chained hash, so its name fixes the path from the root to it. Ranks report the
blocks that they store and evict, one by one and in any order between ranks; ``block_runs.py`` keeps
them as a tree in which stretches of a chain with the same holders are one piece. A walk along a
request's chain therefore costs what the holders change on its way, not its length: each piece is
compared with the chain as a whole, and its holders are those homes that held all before it, too.

Nothing incomplete is ever claimed: a home leaves the walk at the first block that it lacks, and a
block whose parent is unknown waits outside (``pending_blocks.py``). A block that nobody holds, with
none behind it, takes no memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from vertumnusd.control.block_index import NOT_FOUND
from vertumnusd.control.block_runs import BlockRuns
from vertumnusd.control.errors import IllegalEvent
from vertumnusd.control.home_shares import PAIR_BYTES, Chain, HomeShares, Share
from vertumnusd.control.pending_blocks import PendingBlocks, split
from vertumnusd.control.run_table import NONE
from vertumnusd.layout import owner, rotation
from vertumnusd.messages import HASH_BYTES, BlocksChanged, BlocksHeld

ROOT = bytes(HASH_BYTES)  # the parent of first blocks
_WORDS = struct.Struct("=2Q")
TIDIED: Final = 256  # runs that each update looks at after a rank was lost


class PrefixTrie:
    """Holders of every block that some rank keeps.

    In a home of several ranks each block of a chain is owned, and so reported, by one of them
    (``layout.py``): the home holds a block when its owner reports it. Ranks are recorded, not
    homes, since a rank can be lost alone.
    """

    def __init__(self, ranks: int, home_ranks: int) -> None:
        self.tree = BlockRuns(ranks, home_ranks)
        self._shares = HomeShares(home_ranks)
        self._pending = PendingBlocks(ranks, home_ranks)
        self.revision = 0  # rises with every change
        self.versions = [0] * ranks  # of the last report of each
        self._untidy = range(0)

    def __len__(self) -> int:
        return self.tree.blocks + len(self._pending) + len(self._shares)

    # --- reports of the ranks

    def apply(self, report: BlocksChanged) -> int:
        """Take a rank's report in, and return how many before it are missing.

        After a gap nothing older is known to be true: all that the rank held is forgotten, and the
        trie goes on with what this and later reports say. It then knows less than the rank holds,
        never more. A repeated report, with a negative count, is ignored.
        """
        if len(report.stored) % (2 * HASH_BYTES) or len(report.evicted) % HASH_BYTES:
            raise IllegalEvent(f"rank {report.rank} reported blocks of odd length")
        rank = report.rank
        missing = report.version - self.versions[rank] - 1
        if missing < 0:
            return missing
        if missing > 0:
            self.drop_rank(rank)
        self.versions[rank] = report.version
        self.revision += 1
        if report.stored:
            self._store(rank, report.stored)
        if report.evicted:
            self._evict(rank, report.evicted)
        if self._untidy:
            self._tidy()
        return missing

    def resync(self, held: BlocksHeld) -> None:
        """Take in a part of all that a rank holds; the first one replaces what was known of it."""
        if len(held.blocks) % (2 * HASH_BYTES):
            raise IllegalEvent(f"rank {held.rank} reported blocks of odd length")
        if held.version < self.versions[held.rank]:
            return
        if held.first:
            self.drop_rank(held.rank)
            self.versions[held.rank] = held.version
        elif held.version != self.versions[held.rank]:
            return
        self.revision += 1
        if held.blocks:
            self._store(held.rank, held.blocks)

    def drop_rank(self, rank: int) -> None:
        """Forget all that a lost rank held; its successor starts empty, at version 1.

        It holds nothing from now on; the memory is given back with this and the next updates.
        """
        self.tree.wipe(rank)
        self._pending.drop(rank)
        self._shares.remove(rank)
        self.versions[rank] = 0
        self.revision += 1
        self._untidy = self.tree.runs.rows()
        self._tidy()

    def _store(self, rank: int, stored: bytes) -> None:
        share = Share(rank, stored)
        if self.tree.home_ranks == 1:
            self._store_chain(share)
        elif len(stored) == PAIR_BYTES and (node := self._find(share.first_parent)) != NOT_FOUND:
            self._store_behind(node, 1 << rank, share.first_block)
            self._put_together(rank)
        else:
            self._give_up(self._shares.remove(rank))
            self._shares.add(share)
            self._put_together(rank)

    def _store_chain(self, share: Share) -> None:
        """A home of one rank: its blocks are one chain, or looked at one by one."""
        parents, names = share.parents, share.blocks
        one_chain = parents[HASH_BYTES:] == names[:-HASH_BYTES]
        if one_chain and (node := self._find(parents[:HASH_BYTES])) != NOT_FOUND:
            self._store_behind(node, 1 << share.rank, names)
        else:
            self._store_each(share.rank, parents, names)

    def _store_behind(self, node: int, ranks: int, names: bytes) -> None:
        self.tree.store(ranks, node, names)
        if self._pending.ranks:
            self._settle_all(names)

    def _put_together(self, rank: int) -> None:
        """Store what the ranks of its home have told of a chain, as far as it is complete."""
        home = rank - rank % self.tree.home_ranks
        if not self._shares.waits(home):
            return
        while (taken := self._shares.take(home, self._has)) is not None:
            if isinstance(taken, Chain):
                self._store_behind(self._find(taken.parent), taken.ranks, taken.blocks)
            else:
                self._give_up(*taken)
        self._give_up(*self._shares.heard_of(rank))

    def _has(self, home: int, block: bytes) -> bool:
        """Whether a rank of the home holds the block."""
        node = self._find(block)
        if node < 0:
            return node == NONE
        return bool(self.tree.ranks_at(node) >> home & (1 << self.tree.home_ranks) - 1)

    def _give_up(self, *shares: Share | None) -> None:
        """Nobody completes them any more: their blocks are looked at one by one."""
        for share in shares:
            if share is not None:
                self._store_each(share.rank, share.parents, share.blocks)

    def _store_each(self, rank: int, parents: bytes, blocks: bytes) -> None:
        """Blocks that are not one chain wait first, and are then taken a chain at a time."""
        for parent, block in zip(split(parents), split(blocks), strict=True):
            self._pending.add(rank, parent, block)
        self._settle_all(parents)

    def _settle_all(self, parents: bytes) -> None:
        """Store what waits for these blocks, if they are there, and what waits behind that."""
        waited_for = split(parents)
        while waited_for:
            parent = waited_for.pop()
            if parent in self._pending and (node := self._find(parent)) != NOT_FOUND:
                for ranks, chain in self._pending.take(parent):
                    self.tree.store(ranks, node, chain)
                    waited_for.append(chain[-HASH_BYTES:])

    def _evict(self, rank: int, evicted: bytes) -> None:
        """Ranks evict children before their parents: stretches of a run are taken at once."""
        share = self._shares.of(rank)
        if share is not None and not set(split(share.blocks)).isdisjoint(split(evicted)):
            self._give_up(self._shares.remove(rank))
        tree, words = self.tree, memoryview(evicted).cast("Q")
        at, count = 0, len(words) // 2
        while at < count:
            node = tree.index.find_any(words[2 * at], words[2 * at + 1])
            at += 1
            if node == NOT_FOUND:
                self._pending.remove(rank, evicted[HASH_BYTES * (at - 1) : HASH_BYTES * at])
            else:
                more = tree.owned_before(node, words, at)
                tree.evict(rank, node - more * tree.home_ranks, node)
                at += more

    def _tidy(self) -> None:
        for run in self._untidy[:TIDIED]:
            self.tree.tidy(run)
        self._untidy = self._untidy[TIDIED:]

    # --- the longest prefix

    def match(self, chain: bytes) -> dict[int, int]:
        """Blocks of the longest complete prefix, by base rank; none for homes without any."""
        lengths: dict[int, int] = {}
        for homes, blocks in self.prefixes(chain):
            lengths.update(dict.fromkeys(bits(homes), blocks))
        return lengths

    def prefixes(self, chain: bytes) -> list[tuple[int, int]]:
        """Homes (a bit for the base rank of each) by the blocks of their longest complete prefix.

        Shortest first; homes without any prefix are left out.
        """
        tree, found = self.tree, []
        find, run_of, lanes = tree.index.find, tree.run_of, tree.home_ranks
        holders, complete = tree.runs.holders, tree.holders.homes
        words = memoryview(chain).cast("Q")
        homes, block, count = tree.homes, 0, len(words) // 2
        while block < count and homes:
            node = find(words[2 * block], words[2 * block + 1])
            if node == NOT_FOUND:
                break
            length = tree.common(node, chain, block)
            with_all = complete[holders[run_of[node]]]
            if homes & ~with_all:
                masks = [with_all] if lanes == 1 else tree.lane_masks(node, length)
                for step, mask in enumerate(masks, block):
                    remaining = homes & mask
                    if remaining != homes:
                        if step:
                            found.append((homes ^ remaining, step))
                        homes = remaining
            block += length
        if block and homes:
            found.append((homes, block))
        return found

    def span_prefix(self, chain: bytes, base: int, ranks: int) -> int:
        """Blocks of the longest prefix that lies on this span, each block at its owner's.

        Costs the length of the chain; only long chains lie on more than one home.
        """
        words, turn = memoryview(chain).cast("Q"), rotation(chain, ranks)
        for block in range(len(words) // 2):
            node = self.tree.index.find_any(words[2 * block], words[2 * block + 1])
            holder = owner(block, base, turn, ranks)
            if node == NOT_FOUND or not self.tree.ranks_at(node) >> holder & 1:
                return block
        return len(words) // 2

    # --- single nodes, for replication

    def node(self, name: bytes) -> int | None:
        """The number of a block, which stays the same as long as some rank needs it here."""
        node = self._find(name)
        return None if node == NOT_FOUND else node

    # --- all of it

    def claims(self, rank: int) -> Iterator[tuple[bytes, bytes]]:
        """Parent and name of every block that the rank holds; parents first, but for those that
        wait."""
        tree = self.tree
        for node in tree.held_by(rank):
            parent = tree.parent(node)
            yield (ROOT if parent == NONE else tree.name(parent)), tree.name(node)
        for parent_name, block, ranks in self._pending:
            if ranks >> rank & 1:
                yield parent_name, block
        share = self._shares.of(rank)
        if share is not None:
            yield from zip(split(share.parents), split(share.blocks), strict=True)

    def snapshot(self) -> dict[str, int]:
        return {
            "blocks": self.tree.blocks,
            "pending_blocks": len(self._pending) + len(self._shares),
            "runs": len(self.tree.runs),
            "holder_sets": len(self.tree.holders),
            "memory_bytes": self.tree.memory_bytes(),
        }

    def _find(self, name: bytes) -> int:
        if name == ROOT:
            return NONE
        low, high = _WORDS.unpack(name)
        return self.tree.index.find_any(low, high)


@lru_cache(maxsize=4096)
def bits(mask: int) -> tuple[int, ...]:
    """The positions of the bits that are set; few masks come up again and again."""
    return tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)
