"""How the ranks of a worker come by each other's K and V.

Layer by layer a rank **puts** K and V of its own suffix tokens where the others can have them, and
**meets** them to get those of the whole suffix. It **fetches** those of the cached prefix, which
lie in the pools of the home's ranks: one layer ahead, so that they travel while it computes.

``SharedExchange`` is for ranks of one host on CPU, which see the same memory, and
``CollectiveExchange`` for all others. Both give the same numbers.

Shapes: T tokens of one put, S tokens of the suffix (or of the suffixes of a pack, behind one
another), H KV heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from vertumnusd.rank.groups import Group

KV = tuple[Tensor, Tensor]
Spans = Sequence[Sequence[slice]]  # by cp_rank: the suffix tokens it puts, in the order of its puts
Prefix = Sequence[tuple[int, Sequence[int]]]  # cached blocks: (rank that has them, their pool ids)
Fetched = Callable[[], list[KV]]  # waits, then gives K and V of a prefix, in pieces


class Exchange(Protocol):
    """A rank's place in the exchanges of its worker. All calls may raise CollectiveError.

    All ranks of a worker make the same calls with the same ``spans`` and ``prefix``, also when
    they have no token of their own. ``tokens`` is the most that one suffix or pack may have, and
    ``turn`` counts the meetings since the geometry was adopted.
    """

    tokens: int
    turn: int

    def adopt(self, group: Group | None) -> None:
        """Exchange with this group from now on; with nobody (None) at degree 1."""
        ...

    def put(self, layer: int, start: int, k_THD: Tensor, v_THD: Tensor) -> None:
        """Show K and V of this rank's suffix tokens from ``start`` on, at the next meeting."""
        ...

    def meet(self, layer: int, tokens: int, spans: Spans) -> KV:
        """Wait for all ranks; K and V (S, H, D) of the whole suffix of ``tokens`` tokens.

        They stay valid until this rank enters the next meeting.
        """
        ...

    def fetch(self, layer: int, prefix: Prefix) -> Fetched:
        """Begin to bring K and V of these blocks here. The order of the pieces means nothing."""
        ...

    def copied_tokens(self, prefix: Prefix) -> int:
        """Tokens of these blocks that a fetch keeps a copy of, at most."""
        ...

    def skip(self, turn: int, begun: bool) -> None:
        """Let the meetings before ``turn`` pass, for a step that this rank cannot compute.

        ``begun``: it has met for this step, or the others will, so they count on its part.
        """
        ...
