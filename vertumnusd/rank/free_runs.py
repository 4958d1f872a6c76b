"""The free block ids of one KV pool, kept as runs of consecutive ids.

Attention reads a run of consecutive blocks as one view, without copying it; so a request should
get as few runs as possible. ``take`` continues a given run if it can, else it uses the smallest
run that fits, else it starts with the longest. Giving ids back joins them with their neighbours,
so the pool heals as requests leave. Both cost O(runs), and runs are few in a healthy pool.
"""

from __future__ import annotations

from collections.abc import Iterable


class FreeRuns:
    """A set of block ids, ``0 … blocks - 1`` at first, from which runs are taken."""

    def __init__(self, blocks: int) -> None:
        self._end_by_start: dict[int, int] = {}
        self._start_by_end: dict[int, int] = {}
        self._count = 0
        if blocks:
            self._insert(0, blocks)

    def __len__(self) -> int:
        return self._count

    def take(self, count: int, after: int | None = None) -> list[int]:
        """Remove ``count`` ids, in few runs; the first of them follows ``after`` if it can."""
        assert count <= self._count, "the caller makes room first"
        ids: list[int] = []
        while len(ids) < count:
            wanted = count - len(ids)
            if after is not None and after + 1 in self._end_by_start:
                start = after + 1
            else:
                start = self._fitting(wanted)
            end = self._remove(start)
            stop = min(end, start + wanted)
            if stop < end:
                self._insert(stop, end)
            ids.extend(range(start, stop))
        return ids

    def give(self, ids: Iterable[int]) -> None:
        """Return ids that were taken."""
        for block_id in ids:
            start, end = block_id, block_id + 1
            if start in self._start_by_end:
                start = self._start_by_end[start]
                self._remove(start)
            if end in self._end_by_start:
                end = self._remove(end)
            self._insert(start, end)

    def _fitting(self, wanted: int) -> int:
        """Start of the smallest run of at least ``wanted`` ids, or of the longest run."""

        def preference(run: tuple[int, int]) -> tuple[bool, int, int]:
            start, end = run
            length = end - start
            return (length < wanted, length if length >= wanted else -length, start)

        return min(self._end_by_start.items(), key=preference)[0]

    def _insert(self, start: int, end: int) -> None:
        self._end_by_start[start] = end
        self._start_by_end[end] = start
        self._count += end - start

    def _remove(self, start: int) -> int:
        end = self._end_by_start.pop(start)
        del self._start_by_end[end]
        self._count -= end - start
        return end
