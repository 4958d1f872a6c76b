"""What a rank is told first: its place, its memory and its core, from the configuration."""

from __future__ import annotations

import os

from vertumnusd.config import CUDA, Config
from vertumnusd.messages import Loaded, Pace, RankStart
from vertumnusd.node.memory import MemoryFiles

BARRIER_SPIN_S = 0.0001  # twice what it costs to sleep and be woken


def rank_start(
    config: Config,
    loaded: Loaded,
    files: MemoryFiles,
    rank: int,
    root: int,
    generation: int,
    pace: Pace | None = None,
) -> RankStart:
    """The start of one rank of the lattice root that begins at rank ``root``.

    Ranks from ``cluster.ranks`` on are decode ranks. ``generation`` counts the starts of the root.
    """
    first_decode = config.cluster.ranks
    decode = rank >= first_decode
    cores = sorted(os.sched_getaffinity(0))
    cuda = config.rank.device == CUDA
    pinned = config.rank.pin_cores and not decode
    return RankStart(
        rank=rank,
        kind="decode" if decode else "prefill",
        incarnation=generation,
        generation=f"{root}.{generation}",
        model=loaded.model,
        tensors=loaded.tensors,
        weights_fd=files.weights,
        store_host=config.node.rank_host,
        store_port=loaded.store_port,
        cp_degrees=config.cluster.cp_degrees,
        block_tokens=config.cache.block_tokens,
        kv_blocks=config.kv_blocks,
        kv_fds=tuple(files.kv),
        exchange_fds=tuple(files.exchange),
        exchange_tokens=loaded.model.context_tokens,
        own_kv_fd=files.decode_kv[rank - first_decode] if decode else -1,
        own_kv_blocks=config.decode_kv_blocks if decode else config.kv_blocks,
        core=cores[rank % len(cores)] if pinned else -1,
        collective_timeout_s=config.rank.collective_timeout_s,
        barrier_spin_s=BARRIER_SPIN_S if pinned and first_decode <= len(cores) else 0.0,
        pace=pace,
        activation_bytes=config.rank.activation_bytes,
        debug_plans=config.rank.debug_plans,
        device=f"cuda:{rank}" if cuda else "cpu",
        exchange=config.rank.exchange or ("collective" if cuda else "shared"),
    )
