"""Numbers for the nodes of the prefix trie, given out in stretches that can grow together again.

Blocks that are stored as one chain get consecutive numbers, so that they can be compared and marked
as a whole. Free numbers are kept as aligned stretches of powers of two (the buddy system): what is
given back merges with the free other half, that with its own, and so on. One stretch is open at a
time; what is taken is cut from it.
"""

from __future__ import annotations

from typing import Final

LONGEST: Final = 1 << 12  # of a stretch; new numbers are made so many at a time
ROOM: Final = 8  # what is longer is rounded up to a multiple: room for the blocks that will follow
_LAST: Final = LONGEST.bit_length() - 1


class NodeNumbers:
    """``limit`` numbers have been made so far."""

    def __init__(self) -> None:
        self.limit = 0
        self._open = self._end = 0
        self._free: list[dict[int, None]] = [{} for _ in range(_LAST + 1)]

    def take(self, count: int) -> range:
        """A stretch of at least ``count`` numbers, but no longer than ``LONGEST``."""
        length = count if count < ROOM else min(-(-count // ROOM) * ROOM, LONGEST)
        if self._open + length > self._end:
            self._open_another(length)
        start = self._open
        self._open += length
        return range(start, start + length)

    def give(self, start: int, stop: int) -> None:
        """Take the numbers ``start`` … ``stop - 1`` back: any part of what was taken."""
        while start < stop:
            aligned = (start & -start or LONGEST).bit_length()
            order = min(aligned, (stop - start).bit_length()) - 1
            self._merge(start, order)
            start += 1 << order

    def _open_another(self, length: int) -> None:
        """Open the shortest stretch that is long enough, or a new one."""
        self.give(self._open, self._end)
        for order in range((length - 1).bit_length(), _LAST + 1):
            if self._free[order]:
                self._open, _ = self._free[order].popitem()
                self._end = self._open + (1 << order)
                return
        self._open, self._end = self.limit, self.limit + LONGEST
        self.limit += LONGEST

    def _merge(self, start: int, order: int) -> None:
        while order < _LAST and (other := start ^ (1 << order)) in self._free[order]:
            del self._free[order][other]
            start &= other
            order += 1
        self._free[order][start] = None
