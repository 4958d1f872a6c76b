"""Chains with readable names for the tests of the prefix trie, and ranks that report them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache

from vertumnusd.control.prefix_trie import PrefixTrie
from vertumnusd.layout import owner, rotation
from vertumnusd.messages import BlocksChanged

ROOT = bytes(16)


@cache
def name(path: str) -> bytes:
    """The block that ends ``path``: like a chained hash, it depends on all before it."""
    return hashlib.blake2b(path.encode(), digest_size=16).digest() if path else ROOT


def chain(path: str) -> bytes:
    """One block for each letter."""
    return b"".join(name(path[:end]) for end in range(1, len(path) + 1))


def prefixes(path: str) -> list[str]:
    """``a``, ``ab``, ``abc`` for ``abc``: its blocks, one by one."""
    return [path[:end] for end in range(1, len(path) + 1)]


def owner_of(path: str, home: int, home_ranks: int) -> int:
    """The rank of the home that keeps the block which ends ``path``."""
    return owner(len(path) - 1, home, rotation(name(path[0]), home_ranks), home_ranks)


class Reporter:
    """A rank's side: numbers its reports, and names blocks by their paths."""

    def __init__(self, trie: PrefixTrie, rank: int) -> None:
        self.trie, self.rank, self.version = trie, rank, 0

    def report(self, stored: Iterable[str] = (), evicted: Iterable[str] = ()) -> int:
        self.version += 1
        pairs = b"".join(name(path[:-1]) + name(path) for path in stored)
        blocks = b"".join(name(path) for path in evicted)
        return self.trie.apply(BlocksChanged(self.rank, self.version, pairs, blocks, 0, 0, 0))


class Home:
    """The ranks of a home, each of which reports its own blocks of a chain."""

    def __init__(self, trie: PrefixTrie, home: int, home_ranks: int) -> None:
        self.reporters = [Reporter(trie, rank) for rank in range(home, home + home_ranks)]
        self._home, self._home_ranks = home, home_ranks

    def store(self, path: str) -> None:
        self._report(stored=prefixes(path))

    def evict(self, path: str, behind: int = 0) -> None:
        """All blocks of ``path`` but the first few, the deepest first."""
        self._report(evicted=prefixes(path)[behind:][::-1])

    def _report(self, stored: Iterable[str] = (), evicted: Iterable[str] = ()) -> None:
        for reporter in self.reporters:
            reporter.report(
                [path for path in stored if self._owns(reporter, path)],
                [path for path in evicted if self._owns(reporter, path)],
            )

    def _owns(self, reporter: Reporter, path: str) -> bool:
        return owner_of(path, self._home, self._home_ranks) == reporter.rank
