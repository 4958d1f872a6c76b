"""Putting together the chain of which each rank of a home reports its share.

The blocks of a chain belong to the ranks of a home in turn, so a prefill is told by as many reports
as the home has ranks, each with every so many-th block and the names of their parents, which are
other ranks' blocks. A share waits until the home has the block before its first one, or all ranks
have reported. When their shares fit together, which is the rule, the whole chain is put together at
once, at the cost of copying its names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from vertumnusd.messages import HASH_BYTES

NAME = np.dtype(f"V{HASH_BYTES}")


class Share(NamedTuple):
    """Names of blocks that a rank stored, and of their parents, laid end to end."""

    rank: int
    parents: bytes
    blocks: bytes

    @property
    def first_parent(self) -> bytes:
        return self.parents[:HASH_BYTES]

    @property
    def first_block(self) -> bytes:
        return self.blocks[:HASH_BYTES]


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
        return sum(len(share.blocks) for share in self) // HASH_BYTES

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
        first = next((s for s in shares.values() if has(home, s.first_parent)), None)
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

    def _shorten(self, share: Share) -> None:
        """Its first block waits no more."""
        if len(share.blocks) == HASH_BYTES:
            self.remove(share.rank)
        else:
            rest = Share(share.rank, share.parents[HASH_BYTES:], share.blocks[HASH_BYTES:])
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
    count = sum(len(share.blocks) for share in shares) // HASH_BYTES
    parents, blocks = np.empty(count, NAME), np.empty(count, NAME)
    for offset, share in enumerate(shares):
        if len(share.blocks) != len(blocks[offset :: len(shares)]) * HASH_BYTES:
            return None
        parents[offset :: len(shares)] = np.frombuffer(share.parents, NAME)
        blocks[offset :: len(shares)] = np.frombuffer(share.blocks, NAME)
    chain = blocks.tobytes()
    return chain if parents.tobytes()[HASH_BYTES:] == chain[:-HASH_BYTES] else None
