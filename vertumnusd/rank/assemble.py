"""Puts the parts of a prefill rank together, from what its first message says."""

from __future__ import annotations

from vertumnusd.messages import RankStart
from vertumnusd.rank.barrier import AVAILABLE, SharedBarriers
from vertumnusd.rank.collective_exchange import CollectiveExchange
from vertumnusd.rank.exchange import Exchange
from vertumnusd.rank.groups import Group, Groups
from vertumnusd.rank.kv_pool import KVPool
from vertumnusd.rank.models import build
from vertumnusd.rank.prefill import Prefill
from vertumnusd.rank.shared_exchange import SharedExchange
from vertumnusd.rank.weights import map_weights


def open_prefill(start: RankStart, pools: list[KVPool]) -> Prefill:
    """Map weights and memory, meet the other ranks. Raises CollectiveError if one does not come."""
    model = build(start.model, map_weights(start.weights_fd, start.tensors, start.model.dtype))
    return Prefill(start, model, pools[start.rank], open_exchange(start, pools), Groups(start))


def open_pools(start: RankStart, own: bool) -> list[KVPool]:
    """The pools of this host's ranks; ``own``: this rank takes the memory of its own at once."""
    return [
        KVPool(fd, start.kv_blocks, start.model, start.block_tokens, own and rank == start.rank)
        for rank, fd in enumerate(start.kv_fds)
    ]


def open_exchange(start: RankStart, pools: list[KVPool]) -> Exchange:
    """The exchange over these pools. It comes before the groups: a rank's barrier counts are reset
    with it, and must be by the time that ranks meet."""
    if start.exchange != "shared":
        return CollectiveExchange(start.rank, pools[start.rank], start.exchange_tokens)
    barrier = Group.barrier
    if AVAILABLE:
        barrier = SharedBarriers(
            start.exchange_fds, start.rank, start.collective_timeout_s, start.barrier_spin_s
        ).wait
    return SharedExchange(start.exchange_fds, pools, start.model, start.exchange_tokens, barrier)
