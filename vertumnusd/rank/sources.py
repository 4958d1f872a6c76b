"""The KV pools of a host's prefill ranks, as other ranks come by them.

In host memory they are there for as long as the daemon, whatever becomes of the ranks. On CUDA
devices each lives and dies with its rank, and has to be reached anew after a restart.
"""

from __future__ import annotations

from typing import Protocol

from vertumnusd.messages import RankStart
from vertumnusd.rank.device import handle_of, reach
from vertumnusd.rank.groups import join_store
from vertumnusd.rank.kv_pool import KVPool


class Sources(Protocol):
    """The pools by rank."""

    def __getitem__(self, rank: int, /) -> KVPool: ...


class ShownPools:
    """The pools that ranks of this host show on their CUDA devices.

    To reach one, this process makes a context on that device, which takes some memory of it.
    """

    def __init__(self, start: RankStart) -> None:
        self._start = start
        self._store = join_store(start)
        self._reached: dict[int, tuple[bytes, KVPool]] = {}
        self.own: dict[int, KVPool] = {}  # of this rank, if it is one of them

    def __getitem__(self, rank: int, /) -> KVPool:
        if rank in self.own:
            return self.own[rank]
        handle = handle_of(self._store, rank)
        if rank not in self._reached or self._reached[rank][0] != handle:
            start = self._start
            pool = KVPool(
                -1, start.kv_blocks, start.model, start.block_tokens, memory=reach(handle)
            )
            self._reached[rank] = handle, pool
        return self._reached[rank][1]
