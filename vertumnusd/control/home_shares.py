"""Putting together the chain of which each rank of a home reports its share.

The blocks of a chain belong to the ranks of a home in turn, so a prefill is told by as many reports
as the home has ranks, each with every so many-th block and the names of their parents, which are
other ranks' blocks. A share waits until the home has the block before its first one, or all ranks
have reported. When their shares fit together, which is the rule, the whole chain is put together at
once, at the cost of copying its names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from vertumnusd.messages import HASH_BYTES

NAME = np.dtype(f"V{HASH_BYTES}")
PAIR_BYTES: Final = 2 * HASH_BYTES


class Share(NamedTuple):
    """Blocks that a rank stored: of each the parent's name and its own, laid end to end."""

    rank: int
    pairs: bytes

    @property
    def first_parent(self) -> bytes:
        return self.pairs[:HASH_BYTES]

    @property
    def first_block(self) -> bytes:
        return self.pairs[HASH_BYTES:PAIR_BYTES]

    @property
    def parents(self) -> bytes:
        return np.frombuffer(self.pairs, NAME)[::2].tobytes()

    @property
    def blocks(self) -> bytes:
        return np.frombuffer(self.pairs, NAME)[1::2].tobytes()


class Chain(NamedTuple):
    """A stretch of a chain that ``ranks`` (a mask) hold, each the blocks that it owns."""

    ranks: int
    parent: bytes
    blocks: bytes


class HomeShares:
    """The shares that wait, at most one of each rank."""

    def __init__(self, home_ranks: int) -> None:
        self._home_ranks = home_ranks
        self._waiting: dict[int, dict[int, Share]] = {}  # by home and rank
        self._silent: dict[int, set[int]] = {}  # ranks that said nothing since a share waits

    def __len__(self) -> int:
        """Blocks that wait."""
        return sum(len(share.pairs) for share in self) // PAIR_BYTES

    def __iter__(self) -> Iterator[Share]:
        for shares in self._waiting.values():
            yield from shares.values()

    def waits(self, home: int) -> bool:
        return home in self._waiting

    def of(self, rank: int) -> Share | None:
        return self._waiting.get(self._home_of(rank), {}).get(rank)

    def add(self, share: Share) -> None:
        """Have a share wait. The rank has none yet."""
        home = self._home_of(share.rank)
        shares = self._waiting.setdefault(home, {})
        assert share.rank not in shares
        shares[share.rank] = share
        self._silent.setdefault(home, set(range(home, home + self._home_ranks)))

    def heard_of(self, rank: int) -> list[Share]:
        """The rank has reported. Returns what waits no more, once all ranks have."""
        home = self._home_of(rank)
        silent = self._silent.get(home, {rank})
        silent.discard(rank)
        if silent:
            return []
        given_up = list(self._waiting.get(home, {}).values())
        for share in given_up:
            self.remove(share.rank)
        return given_up

    def remove(self, rank: int) -> Share | None:
        home = self._home_of(rank)
        shares = self._waiting.get(home, {})
        share = shares.pop(rank, None)
        if not shares:
            self._waiting.pop(home, None)
            self._silent.pop(home, None)
        return share

    def take(self, home: int, has: Callable[[int, bytes], bool]) -> Chain | list[Share] | None:
        """Take away what is complete behind a block that the home has: by ``has(home, block)``.

        Shares that all are there and do not fit together come back as they are.
        """
        shares = self._waiting.get(home, {})
        first = self._first(home, shares, has)
        if first is None:
            return None
        in_turn = self._in_turn(first, shares)
        if len(in_turn) == self._home_ranks:
            blocks = interleaved(in_turn)
            for share in in_turn:
                self.remove(share.rank)
            if blocks is None:
                return in_turn
        else:
            blocks = b"".join(share.first_block for share in in_turn)
            for share in in_turn:
                self._shorten(share)
        return Chain(sum(1 << share.rank for share in in_turn), first.first_parent, blocks)

    def _first(
        self, home: int, shares: dict[int, Share], has: Callable[[int, bytes], bool]
    ) -> Share | None:
        """The share whose first block is behind one that the home has."""
        waiting = {share.first_block for share in shares.values()}  # which is not there yet
        for share in shares.values():
            parent = share.first_parent
            if parent not in waiting and has(home, parent):
                return share
        return None

    def _shorten(self, share: Share) -> None:
        """Its first block waits no more."""
        if len(share.pairs) == PAIR_BYTES:
            self.remove(share.rank)
        else:
            rest = Share(share.rank, share.pairs[PAIR_BYTES:])
            self._waiting[self._home_of(share.rank)][share.rank] = rest

    def _in_turn(self, first: Share, shares: dict[int, Share]) -> list[Share]:
        """The shares whose first blocks follow each other, as far as they are there."""
        behind = {share.first_parent: share for share in shares.values()}
        in_turn = [first]
        while len(in_turn) < self._home_ranks:
            share = behind.get(in_turn[-1].first_block)
            if share is None or share in in_turn:
                break
            in_turn.append(share)
        return in_turn

    def _home_of(self, rank: int) -> int:
        return rank - rank % self._home_ranks


def interleaved(shares: Sequence[Share]) -> bytes | None:
    """The chain that is made of one block of each share in turn; None if they do not make one."""
    count, lanes = sum(len(share.pairs) for share in shares) // PAIR_BYTES, len(shares)
    pairs = np.empty((count, 2), NAME)
    for offset, share in enumerate(shares):
        if len(share.pairs) != len(range(offset, count, lanes)) * PAIR_BYTES:
            return None
        pairs[offset::lanes] = np.frombuffer(share.pairs, NAME).reshape(-1, 2)
    chain = pairs[:, 1].tobytes()
    return chain if pairs[1:, 0].tobytes() == chain[:-HASH_BYTES] else None
