"""Copies of prefixes that were ordered and not answered yet, and the room set aside for them.

``replication.py`` orders copies because prefixes are used, ``fetching.py`` because a request waits
for one. A copy is known from ``Replicate`` to its answer, with room reserved at the destination; it
is given up at its deadline, or when one of its homes is lost. It is no replica: the prefix trie
learns of it by the ranks' reports, after all of them installed it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from vertumnusd.control.hot_prefixes import prefix_name
from vertumnusd.control.ledger import Ledger
from vertumnusd.messages import HASH_BYTES, Replicate

FETCH = "fetch"  # the kind of those that requests wait for


class Copy(NamedTuple):
    """Where a path is copied from and to; ``first_block`` is the first one not there.

    Either end is a home, unless its number of ranks is given: then it is a span of several.
    """

    chain: bytes
    first_block: int
    source: int
    destination: int
    source_ranks: int = 0
    destination_ranks: int = 0

    @property
    def blocks(self) -> int:
        return len(self.chain) // HASH_BYTES - self.first_block

    def touches(self, home: int) -> bool:
        """Whether it reads or writes there."""
        ends = ((self.source, self.source_ranks), (self.destination, self.destination_ranks))
        return any(base <= home < base + max(ranks, 1) for base, ranks in ends)


@dataclass(frozen=True, slots=True)
class Transfer:
    kind: str
    copy: Copy
    deadline: float


class Copies:
    """Those under way, by number."""

    def __init__(self, home_ranks: int, ledger: Ledger) -> None:
        self._home_ranks = home_ranks
        self._ledger = ledger
        self._transfers: dict[int, Transfer] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._transfers)

    def __iter__(self) -> Iterator[Transfer]:
        return iter(self._transfers.values())

    def __contains__(self, number: int) -> bool:
        return number in self._transfers

    def __getitem__(self, number: int) -> Copy:
        return self._transfers[number].copy

    def begin(self, now: float, term: int, kind: str, copy: Copy, deadline_s: float) -> Replicate:
        self._number += 1
        self._ledger.homes.reserve(copy.destination, copy.blocks, copy.destination_ranks)
        self._transfers[self._number] = Transfer(kind, copy, now + deadline_s)
        return Replicate(
            term=term,
            transfer=self._number,
            kind=kind,
            chain=copy.chain,
            first_block=copy.first_block,
            source_home=copy.source,
            destination_home=copy.destination,
            deadline_s=deadline_s,
            source_ranks=copy.source_ranks or self._home_ranks,
            destination_ranks=copy.destination_ranks or self._home_ranks,
        )

    def ended(self, number: int) -> None:
        """It is installed, or it failed. Nothing to do if it was given up before."""
        known = self._transfers.pop(number, None)
        if known is not None:
            copy = known.copy
            self._ledger.release_copy(copy.destination, copy.blocks, copy.destination_ranks)

    def lose(self, ranks: Iterable[int]) -> None:
        """What these ranks should have sent or taken in will not be."""
        homes = {rank - rank % self._home_ranks for rank in ranks}
        for number, transfer in list(self._transfers.items()):
            if any(transfer.copy.touches(home) for home in homes):
                self.ended(number)

    def next_deadline(self) -> float | None:
        return min([t.deadline for t in self._transfers.values()]) if self._transfers else None

    def pass_time(self, now: float) -> None:
        """Give up what is late."""
        for number, transfer in list(self._transfers.items()):
            if transfer.deadline <= now:
                self.ended(number)

    def snapshot(self) -> list[dict[str, Any]]:
        return [
            {
                "transfer": number,
                "kind": transfer.kind,
                "prefix": prefix_name(transfer.copy.chain[-HASH_BYTES:]),
                "blocks": transfer.copy.blocks,
                "source_home": transfer.copy.source,
                "destination_home": transfer.copy.destination,
                "deadline": transfer.deadline,
            }
            for number, transfer in self._transfers.items()
        ]
