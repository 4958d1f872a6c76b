"""Algorithm 1 (section 3 of the method): what each dispatched request says about prefixes.

    access[z, C_w]  += 1                                  for every z on the path reused at w
    missed[z, C']   += Ê_C'(L − P0, P0) − Ê_C'(L − P1, P1) for every z on the matched path that has
                                                          no replica at the preferred degree C'

P0 and P1 are the prefix lengths of z's parent and of z; the sum over a path is the time that its
replica would have saved. Both statistics decay at every scan (``replication.py``).

z are the marks of ``promised.py``: blocks, or with small blocks every so many of them. Only nodes
that were touched are kept, in dicts of bytes and floats: the garbage collector does not visit them.
"""

from __future__ import annotations

from collections.abc import Iterator

from vertumnusd.control.prefill_time import PrefillTime
from vertumnusd.control.promised import marks
from vertumnusd.control.settings import Settings

FORGOTTEN = 0.01  # a statistic below this is dropped when it decays

ByNode = dict[bytes, float]


class PrefixStatistics:
    """``access`` and ``missed``, each by degree and by node."""

    def __init__(self, settings: Settings, prefill_time: PrefillTime) -> None:
        self.access: dict[int, ByNode] = {degree: {} for degree in settings.cp_degrees}
        self.missed: dict[int, ByNode] = {degree: {} for degree in settings.cp_degrees}
        self.stride = settings.mark_blocks
        self._settings = settings.replication
        self._stride_tokens = self.stride * settings.block_tokens
        self._prefill_time = prefill_time

    def reuse(self, path: bytes, degree: int) -> None:
        """A request reuses this path, at a worker of this degree."""
        access = self.access[degree]
        for node in marks(path, self.stride):
            self._add(access, node, 1.0)

    def miss(self, path: bytes, there: int, degree: int, input_tokens: int) -> None:
        """A request of ``input_tokens`` would rather have this path at ``degree``.

        Its first ``there`` blocks have a replica at that degree.
        """
        missed = self.missed[degree]
        first = there // self.stride  # marks that have a replica
        lost_s = self._lost_s(degree, input_tokens, first)
        for number, node in enumerate(marks(path, self.stride)):
            if number >= first:
                self._add(missed, node, next(lost_s))

    def nodes(self, degree: int) -> Iterator[tuple[bytes, float, float]]:
        """Every node with a statistic at this degree: its name, access and missed."""
        access, missed = self.access[degree], self.missed[degree]
        for node in access.keys() | missed.keys():
            yield node, access.get(node, 0.0), missed.get(node, 0.0)

    def decay(self) -> None:
        factor = self._settings.decay
        for statistic in (self.access, self.missed):
            for degree, values in statistic.items():
                decayed = ((node, value * factor) for node, value in values.items())
                statistic[degree] = {n: value for n, value in decayed if value >= FORGOTTEN}

    def _lost_s(self, degree: int, input_tokens: int, first: int) -> Iterator[float]:
        """Ê_C'(L − P0, P0) − Ê_C'(L − P1, P1) of the marks from ``first`` on."""
        prefix = first * self._stride_tokens
        without_s = self._prefill_time.predict_s(degree, input_tokens - prefix, prefix)
        while True:
            prefix += self._stride_tokens
            with_s = self._prefill_time.predict_s(degree, input_tokens - prefix, prefix)
            yield without_s - with_s
            without_s = with_s

    def _add(self, values: ByNode, node: bytes, amount: float) -> None:
        """New nodes are turned away while there are too many."""
        if node in values:
            values[node] += amount
        elif len(values) < self._settings.max_nodes:
            values[node] = amount
