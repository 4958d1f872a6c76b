"""Numbers for the nodes of the prefix trie, given out in stretches that can grow together again.

Blocks that are stored as one chain get consecutive numbers, so that they can be compared and marked
as a whole. Stretches are powers of two long and aligned to their length (the buddy system): what is
given back merges with the free other half, and that with its other half, and so on. Rounding up
leaves a chain room for the blocks that will follow it.
"""

from __future__ import annotations

LONGEST = 1 << 12  # of a stretch; new numbers are made so many at a time
_LAST = LONGEST.bit_length() - 1


class NodeNumbers:
    """Free stretches by the logarithm of their length; ``limit`` numbers have been made so far."""

    def __init__(self) -> None:
        self.limit = 0
        self._free: list[dict[int, None]] = [{} for _ in range(_LAST + 1)]
        self._orders = 0  # a bit for each length of which there is a free stretch

    def take(self, count: int) -> range:
        """A stretch of at least ``count`` numbers, but no longer than ``LONGEST``."""
        order = (min(count, LONGEST) - 1).bit_length()
        longer = self._orders >> order << order
        if longer:
            found = (longer & -longer).bit_length() - 1
            start = self._pop(found)
        else:
            found, start = _LAST, self.limit
            self.limit += LONGEST
        while found > order:
            found -= 1
            self._put(start + (1 << found), found)
        return range(start, start + (1 << order))

    def give(self, start: int, stop: int) -> None:
        """Take the numbers ``start`` … ``stop - 1`` back: any part of what was taken."""
        while start < stop:
            aligned = (start & -start or LONGEST).bit_length()
            order = min(aligned, (stop - start).bit_length()) - 1
            self._merge(start, order)
            start += 1 << order

    def _merge(self, start: int, order: int) -> None:
        while order < _LAST and (other := start ^ (1 << order)) in self._free[order]:
            del self._free[order][other]
            if not self._free[order]:
                self._orders ^= 1 << order
            start &= other
            order += 1
        self._put(start, order)

    def _put(self, start: int, order: int) -> None:
        self._free[order][start] = None
        self._orders |= 1 << order

    def _pop(self, order: int) -> int:
        start, _ = self._free[order].popitem()
        if not self._free[order]:
            self._orders ^= 1 << order
        return start
