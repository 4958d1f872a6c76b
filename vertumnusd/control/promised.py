"""Blocks that queued or running requests will produce, by worker: the match that counts them.

A follower of a request that has not run yet finds nothing in any cache; placed elsewhere, it
computes the same prefix again. With this, a worker that is about to have the prefix counts as
having it.

What is kept are *marks*: every block that ends a stretch of ``mark_tokens``. So the cost of a
request is bounded by its length, not by its number of blocks, and the match is short by less than
one stretch, never long.
"""

from __future__ import annotations

from collections.abc import Iterator

from vertumnusd.control.fleet import Worker
from vertumnusd.messages import HASH_BYTES


class Promised:
    """A multiset of chains for each worker; a chain counts as long as someone will produce it."""

    def __init__(self, mark_blocks: int) -> None:
        self._stride = mark_blocks
        self._workers: dict[bytes, dict[Worker, int]] = {}  # chains through each mark

    def __len__(self) -> int:
        return len(self._workers)

    def add(self, worker: Worker, chain: bytes) -> None:
        for mark in marks(chain, self._stride):
            counts = self._workers.setdefault(mark, {})
            counts[worker] = counts.get(worker, 0) + 1

    def remove(self, worker: Worker, chain: bytes) -> None:
        for mark in marks(chain, self._stride):
            counts = self._workers[mark]
            counts[worker] -= 1
            if not counts[worker]:
                del counts[worker]
                if not counts:
                    del self._workers[mark]

    def match(self, chain: bytes) -> dict[Worker, int]:
        """Blocks of the chain that each worker will have; none for workers that promise none."""
        blocks: dict[Worker, int] = {}
        for number, mark in enumerate(marks(chain, self._stride), 1):
            workers = self._workers.get(mark)
            if workers is None:
                break
            blocks.update(dict.fromkeys(workers, number * self._stride))
        return blocks


def marks(chain: bytes, stride: int) -> Iterator[bytes]:
    """The names of every ``stride``-th block."""
    step = HASH_BYTES * stride
    return (chain[end - HASH_BYTES : end] for end in range(step, len(chain) + 1, step))


def common_blocks(one: bytes, other: bytes) -> int:
    """How many leading blocks two chains share. Names stand for paths: one look finds the side."""
    low, high = 0, min(len(one), len(other)) // HASH_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        at = HASH_BYTES * (middle - 1)
        if one[at : at + HASH_BYTES] == other[at : at + HASH_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
