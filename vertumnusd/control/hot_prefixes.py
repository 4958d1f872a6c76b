"""The prefixes that are used, or missed, most: for people's eyes, decided is in ``replication.py``.

Every block of a path has statistics, and a path is used from its root on. What is shown of a path
is the deepest block of each stretch with the same use.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest
from typing import Any, NamedTuple

from vertumnusd.control.fleet import Fleet
from vertumnusd.control.prefix_nodes import PrefixNodes, bits
from vertumnusd.control.prefix_statistics import PrefixStatistics
from vertumnusd.control.settings import Settings
from vertumnusd.messages import HASH_BYTES

NAME_BYTES = 4  # of a block's hash, to call a prefix by
SHOWN = 20
GONE_THROUGH = 2000  # of the nodes touched last, at each degree: what is hot was touched lately
EXAMINED = 200
RENEWED_S = 5.0  # not at every look


def prefix_name(block: bytes) -> str:
    """What people call the prefix that ends with this block."""
    return block[:NAME_BYTES].hex()


class Use(NamedTuple):
    """Sums over degrees."""

    access: float
    missed_s: float


class HotPrefixes:
    def __init__(
        self,
        settings: Settings,
        nodes: PrefixNodes,
        statistics: PrefixStatistics,
        fleet: Fleet,
    ) -> None:
        self._settings = settings
        self._nodes = nodes
        self._statistics = statistics
        self._fleet = fleet
        self._shown: list[dict[str, Any]] = []
        self._renewed = float("-inf")

    def show(self, now: float) -> list[dict[str, Any]]:
        """Most used first, at most a few seconds old."""
        if now >= self._renewed + RENEWED_S:
            self._renewed = now
            self._shown = [self._describe(node, use) for node, use in self._hottest()]
        return self._shown

    def _hottest(self) -> list[tuple[bytes, Use]]:
        uses: dict[bytes, Use] = {}
        for degree in self._settings.cp_degrees:
            for node, access, missed_s in self._statistics.latest(degree, GONE_THROUGH):
                known = uses.get(node, Use(0.0, 0.0))
                uses[node] = Use(known.access + access, known.missed_s + missed_s)
        examined = nlargest(EXAMINED, uses.items(), key=lambda item: (item[1], item[0]))
        return self._ends_of_stretches(dict(examined))[:SHOWN]

    def _ends_of_stretches(self, uses: dict[bytes, Use]) -> list[tuple[bytes, Use]]:
        """Leave out a block if one behind it is used as much."""
        kept: list[tuple[bytes, Use]] = []
        covered: dict[bytes, float] = {}  # block → access of one behind it
        for node in sorted(uses, key=lambda n: (-uses[n].access, -self._nodes.depth(n), n)):
            use = uses[node]
            if covered.get(node) == use.access:
                continue
            kept.append((node, use))
            for ancestor in _split(self._nodes.chain_to(node)):
                covered[ancestor] = max(use.access, covered.get(ancestor, 0.0))
        return kept

    def _describe(self, node: bytes, use: Use) -> dict[str, Any]:
        homes = bits(self._nodes.holders(node))
        serving = self._fleet.serving()
        replicas = {
            degree: sum(w.degree == degree and any(h in w.ranks for h in homes) for w in serving)
            for degree in sorted(self._settings.cp_degrees)
        }
        return {
            "prefix": prefix_name(node),
            "tokens": (self._nodes.depth(node) + 1) * self._settings.block_tokens,
            "access": use.access,
            "missed_s": use.missed_s,
            "homes": list(homes),
            "replicas": [{"degree": degree, "workers": n} for degree, n in replicas.items()],
        }


def _split(chain: bytes) -> Iterable[bytes]:
    return (chain[at : at + HASH_BYTES] for at in range(0, len(chain), HASH_BYTES))
