"""The prefix trie as replication sees it: single blocks, by name, with their paths and holders."""

from __future__ import annotations

from vertumnusd.control.prefix_trie import PrefixTrie, bits
from vertumnusd.control.run_table import NONE

__all__ = ["PrefixNodes", "bits"]


class PrefixNodes:
    """A block that the trie does not know has no path and no holders."""

    def __init__(self, trie: PrefixTrie, home_ranks: int) -> None:
        self._trie = trie
        self._home_ranks = home_ranks

    def named(self, start: bytes) -> list[bytes]:
        """Blocks whose names begin with these bytes."""
        return self._trie.tree.named(start)

    def holders(self, block: bytes) -> int:
        """Homes that hold the whole path to the block: a bit for the base rank of each."""
        node = self._trie.node(block)
        return 0 if node is None else self._trie.tree.homes_at(node)

    def depth(self, block: bytes) -> int:
        """Blocks before it on its path."""
        node = self._trie.node(block)
        return 0 if node is None else self._trie.tree.depth(node)

    def chain_to(self, block: bytes) -> bytes:
        """The names of its path, the block's own last."""
        node = self._trie.node(block)
        tree, stretches = self._trie.tree, []
        while node is not None and node != NONE:
            run = tree.run_of[node]
            stretches.append(tree.names[2 * tree.runs.start[run] : 2 * node + 2].tobytes())
            node = tree.runs.up[run]
        return b"".join(reversed(stretches))

    def kept_behind(self, block: bytes, home: int) -> set[bytes]:
        """Blocks that follow it, of any chain, and that a rank of the home has."""
        node = self._trie.node(block)
        if node is None:
            return set()
        tree, ranks = self._trie.tree, ((1 << self._home_ranks) - 1) << home
        return {tree.name(child) for child in tree.children(node) if tree.ranks_at(child) & ranks}
