"""Values that all decay together, kept so that no scan ever has to look at all of them.

Nothing is touched to decay: what is added later weighs more instead. Nodes are in the order in
which they were changed, so the cold ones come first, and those above the mark are known by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

REWEIGHED = 1e200  # the weight at which all values are divided by it, once in hundreds of scans
FORGOTTEN_SHARE = 8  # of a full table an eighth is forgotten at once


class Decaying:
    """Values by node, in dicts of bytes and floats: the garbage collector does not visit them."""

    def __init__(self, mark: float, limit: int) -> None:
        """``mark``: nodes of more than this are in ``high``; at most ``limit`` nodes are kept."""
        self._mark = mark
        self._limit = limit
        self._weighed: dict[bytes, float] = {}
        self._weight = 1.0
        self._high: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._weighed)

    def __getitem__(self, node: bytes) -> float:
        return self._weighed.get(node, 0.0) / self._weight

    def add(self, node: bytes, amount: float) -> None:
        weighed = self._weighed
        value = weighed[node] = weighed.pop(node, 0.0) + amount * self._weight
        if value > self._mark * self._weight:
            self._high.add(node)
        if len(weighed) > self._limit:
            self.forget(node for _, node in self.coldest(1 + self._limit // FORGOTTEN_SHARE))

    def decay(self, factor: float) -> None:
        self._weight /= factor
        if self._weight > REWEIGHED:
            self._weighed = {node: value / self._weight for node, value in self._weighed.items()}
            self._weight = 1.0

    def high(self) -> list[tuple[float, bytes]]:
        """Every node of more than the mark, with its value."""
        least = self._mark * self._weight
        self._high = {node for node in self._high if self._weighed.get(node, 0.0) > least}
        return [(self[node], node) for node in self._high]

    def coldest(self, count: int) -> list[tuple[float, bytes]]:
        """The nodes that were not changed for longest, with their values."""
        return [(value / self._weight, n) for n, value in islice(self._weighed.items(), count)]

    def latest(self, count: int) -> list[bytes]:
        """The nodes that were changed last."""
        return list(islice(reversed(self._weighed), count))

    def forget(self, nodes: Iterable[bytes]) -> None:
        for node in nodes:
            del self._weighed[node]
