"""Algorithm 1 (section 3 of the method): what each dispatched request says about prefixes.

    access[z, C_w]  += 1                                  for every z on the path reused at w
    missed[z, C']   += Ê_C'(L − P0, P0) − Ê_C'(L − P1, P1) for every z on the matched path that has
                                                          no replica at the preferred degree C'

P0 and P1 are the prefix lengths of z's parent and of z; the sum over a path is the time that its
replica would have saved. Both statistics decay at every scan (``replication.py``).

z are the marks of ``promised.py``: blocks, or with small blocks every so many of them. Only nodes
that were touched are kept (``decaying.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vertumnusd.control.decaying import Decaying
from vertumnusd.control.prefill_time import PrefillTime
from vertumnusd.control.settings import Settings

FORGOTTEN: Final = 0.01  # a statistic below this is dropped
LOOKED_AT: Final = 1024  # of the coldest nodes, at each decay


class PrefixStatistics:
    """``access`` and ``missed``, each by degree and by node."""

    def __init__(self, settings: Settings, prefill_time: PrefillTime) -> None:
        replication = settings.replication
        limit, degrees = replication.max_nodes, settings.cp_degrees
        self.access = {d: Decaying(replication.intra_accesses, limit) for d in degrees}
        self.missed = {d: Decaying(replication.inter_missed_s, limit) for d in degrees}
        self.stride = settings.mark_blocks
        self._decay = replication.decay
        self._stride_tokens = self.stride * settings.block_tokens
        self._prefill_time = prefill_time

    def reuse(self, path: list[bytes], degree: int) -> None:
        """A request reuses these marks, at a worker of this degree."""
        add = self.access[degree].add
        for node in path:
            add(node, 1.0)

    def miss(self, path: list[bytes], there: int, degree: int, input_tokens: int) -> None:
        """A request of ``input_tokens`` would rather have these marks at ``degree``.

        The first ``there`` of them have a replica at that degree.
        """
        lost_s = self._lost_s(degree, input_tokens, there)
        for node, seconds in zip(path[there:], lost_s, strict=False):
            self.missed[degree].add(node, seconds)

    def latest(self, degree: int, count: int) -> Iterator[tuple[bytes, float, float]]:
        """The nodes used or missed last at this degree: name, access and missed."""
        access, missed = self.access[degree], self.missed[degree]
        for node in dict.fromkeys([*access.latest(count), *missed.latest(count)]):
            yield node, access[node], missed[node]

    def decay(self) -> None:
        """Both statistics × decay. Nodes of next to nothing are forgotten, some with each call."""
        for statistic in (self.access, self.missed):
            for values in statistic.values():
                values.decay(self._decay)
                cold = values.coldest(LOOKED_AT)
                values.forget(node for value, node in cold if value < FORGOTTEN)

    def _lost_s(self, degree: int, input_tokens: int, first: int) -> Iterator[float]:
        """Ê_C'(L − P0, P0) − Ê_C'(L − P1, P1) of the marks from ``first`` on."""
        prefix = first * self._stride_tokens
        without_s = self._prefill_time.predict_s(degree, input_tokens - prefix, prefix)
        while True:
            prefix += self._stride_tokens
            with_s = self._prefill_time.predict_s(degree, input_tokens - prefix, prefix)
            yield without_s - with_s
            without_s = with_s
