"""Blocks that queued or running requests will produce, by worker: the match that counts them.

A follower of a request that has not run yet finds nothing in any cache; placed elsewhere, it
computes the same prefix again. With this, a worker that is about to have the prefix counts as
having it.

What is kept are *marks*: every block that ends a stretch of ``mark_tokens``. So the cost of a
request is bounded by its length, not by its number of blocks, and the match is short by less than
one stretch, never long.
"""

from __future__ import annotations

from vertumnusd.control.fleet import Worker
from vertumnusd.messages import HASH_BYTES


class Promised:
    """A multiset of chains for each worker; a chain counts as long as someone will produce it."""

    def __init__(self) -> None:
        self._workers: dict[bytes, int] = {}  # by mark: a bit for the first rank of each worker
        self._again: dict[int, dict[bytes, int]] = {}  # by first rank: more chains through a mark

    def __len__(self) -> int:
        return len(self._workers)

    def workers(self, mark: bytes) -> int:
        """A bit for the first rank of each that promises it."""
        return self._workers.get(mark, 0)

    def add(self, worker: Worker, path: list[bytes]) -> None:
        """``path``: the marks of a chain."""
        base, workers, known = worker.base, self._workers, 0
        again = self._again.setdefault(base, {})
        for mark in path:
            there = workers.get(mark, 0)
            if not there:
                break  # nor is any mark behind it
            if there >> base & 1:
                again[mark] = again.get(mark, 0) + 1
            else:
                workers[mark] = there | 1 << base
            known += 1
        workers.update(dict.fromkeys(path[known:], 1 << base))

    def remove(self, worker: Worker, path: list[bytes]) -> None:
        base, workers = worker.base, self._workers
        again = self._again[base]
        for number, mark in enumerate(path):
            more = again.get(mark, 0)
            if more > 1:
                again[mark] = more - 1
            elif more:
                del again[mark]
            elif workers[mark] == 1 << base:
                for rest in path[number:]:  # which are nobody else's either
                    del workers[rest]
                return
            else:
                workers[mark] ^= 1 << base

    def prefixes(self, path: list[bytes]) -> list[tuple[int, int]]:
        """Workers (a bit for the first rank of each) and the marks that they will have of it.

        Fewest first; workers that promise none are left out.
        """
        found: list[tuple[int, int]] = []
        before = 0
        for count, mark in enumerate(path):
            workers = self._workers.get(mark, 0)
            if workers != before and count:
                found.append((before ^ workers, count))
            if not workers:
                return found
            before = workers
        return [*found, (before, len(path))] if before else found


def marks(chain: bytes, stride: int) -> list[bytes]:
    """The names of every ``stride``-th block."""
    step = HASH_BYTES * stride
    return [chain[end - HASH_BYTES : end] for end in range(step, len(chain) + 1, step)]


def common_blocks(one: bytes, other: bytes) -> int:
    """How many leading blocks two chains share. Names stand for paths: one look finds the side."""
    if one[:HASH_BYTES] != other[:HASH_BYTES]:
        return 0  # as is the rule
    low, high = 0, min(len(one), len(other)) // HASH_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        at = HASH_BYTES * (middle - 1)
        if one[at : at + HASH_BYTES] == other[at : at + HASH_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
