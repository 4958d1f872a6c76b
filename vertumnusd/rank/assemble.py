"""Puts the parts of a rank together, from what its first message says."""

from __future__ import annotations

from collections.abc import Callable

import torch

from vertumnusd.layout import kv_pool_bytes
from vertumnusd.messages import RankStart
from vertumnusd.rank.barrier import AVAILABLE, SharedBarriers
from vertumnusd.rank.collective_exchange import CollectiveExchange
from vertumnusd.rank.device import on_device, show, take_memory
from vertumnusd.rank.exchange import Exchange
from vertumnusd.rank.groups import Group, Groups, join_store
from vertumnusd.rank.kv_pool import KVPool
from vertumnusd.rank.models import Model, build
from vertumnusd.rank.prefill import Prefill
from vertumnusd.rank.shared_exchange import SharedExchange
from vertumnusd.rank.sources import ShownPools, Sources
from vertumnusd.rank.weights import map_weights


def open_prefill(start: RankStart, pools: Sources, device: torch.device) -> Prefill:
    """Take the weights, meet the other ranks. Raises CollectiveError if one does not come."""
    model = open_model(start, device)
    exchange = open_exchange(start, pools)
    return Prefill(start, model, pools[start.rank], exchange, Groups(start, device), device)


def open_model(start: RankStart, device: torch.device) -> Model:
    """The model over the weights in shared memory, or over a copy on the device."""
    weights = map_weights(start.weights_fd, start.tensors, start.model.dtype)
    return build(start.model, on_device(weights, device))


def open_pools(start: RankStart, device: torch.device, own: bool) -> Sources:
    """The pools of this host's prefill ranks; ``own``: this rank, one of them, takes the memory of
    its own at once."""
    blocks, block_tokens = start.kv_blocks, start.block_tokens
    if device.type == "cpu":
        return {
            rank: KVPool(fd, blocks, start.model, block_tokens, own and rank == start.rank)
            for rank, fd in enumerate(start.kv_fds)
        }
    shown = ShownPools(start)
    if own:
        memory = take_memory(kv_pool_bytes(start.model, blocks, block_tokens), device)
        show(join_store(start), start.rank, memory)
        shown.own[start.rank] = KVPool(-1, blocks, start.model, block_tokens, memory=memory)
    return shown


def open_decode_pool(start: RankStart, device: torch.device) -> KVPool:
    """A decode rank's own pool."""
    blocks, block_tokens = start.own_kv_blocks, start.block_tokens
    if device.type == "cpu":
        return KVPool(start.own_kv_fd, blocks, start.model, block_tokens, own=True)
    memory = take_memory(kv_pool_bytes(start.model, blocks, block_tokens), device)
    return KVPool(-1, blocks, start.model, block_tokens, memory=memory)


def open_exchange(start: RankStart, pools: Sources) -> Exchange:
    """The exchange over these pools. It comes before the groups: a rank's barrier counts are reset
    with it, and must be by the time that ranks meet."""
    if start.exchange != "shared":
        return CollectiveExchange(start.rank, pools[start.rank], start.exchange_tokens)
    barrier: Callable[[Group], None] = Group.barrier
    if AVAILABLE:
        barrier = SharedBarriers(
            start.exchange_fds, start.rank, start.collective_timeout_s, start.barrier_spin_s
        ).wait
    return SharedExchange(start.exchange_fds, pools, start.model, start.exchange_tokens, barrier)
