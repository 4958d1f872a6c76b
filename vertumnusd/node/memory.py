"""Memory of a host's ranks: how much of it goes where, and what they share of it.

They share weights, KV pools and exchange areas.

Anonymous memory files, handed down by descriptor: they vanish with the last process that has them,
and nothing is left behind in any file system.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from vertumnusd.config import CUDA, Config, ConfigError
from vertumnusd.layout import exchange_bytes, kv_pool_bytes
from vertumnusd.messages import DTYPE_BYTES, ModelInfo

GiB = 1 << 30
RESERVE_SHARE = 0.1  # of the available memory, for others
KV_SHARE = 0.8  # of what is free, for pools without a configured size; the rest is for activations
PROCESS_BYTES = 300 << 20  # of a rank that has imported torch and has nothing to do
LEAST_ACTIVATION_BYTES = 64 << 20


def plan_memory(config: Config, model: ModelInfo) -> Config:
    """The configuration with all sizes: those that it leaves to us come from what is free.

    That is what the host has available, less a reserve, the weights, the exchange areas and the
    processes themselves. A KV pool of prefill ranks takes its memory at start, activations theirs
    when there is work. Raises ConfigError if all together exceed what is free: without this the
    kernel would pick a process to kill, and not always one of ours. Memory on CUDA devices is not
    planned here.
    """
    if config.rank.device == CUDA:
        return config
    return planned(config, model, _available_bytes())


def planned(config: Config, model: ModelInfo, available_bytes: int) -> Config:
    """``plan_memory`` of a host that has so much available."""
    ranks, replace = config.cluster.ranks, msgspec.structs.replace
    free_bytes = int(available_bytes * (1 - RESERVE_SHARE)) - fixed_bytes(config, model)
    token_bytes = model.kv_bytes_per_token
    free_bytes -= config.cluster.decode_ranks * config.cache.decode_kv_tokens * token_bytes
    kv_tokens = config.cache.kv_tokens
    if not kv_tokens:
        kv_tokens = max(0, int(free_bytes * KV_SHARE)) // (ranks * token_bytes)
        kv_tokens -= kv_tokens % config.cache.block_tokens
    free_bytes -= ranks * kv_tokens * token_bytes
    activation_bytes = config.rank.activation_bytes or free_bytes // ranks
    if kv_tokens < config.cache.block_tokens or activation_bytes < LEAST_ACTIVATION_BYTES:
        raise _too_little(config, available_bytes, LEAST_ACTIVATION_BYTES * ranks - free_bytes)
    if ranks * activation_bytes > free_bytes:
        raise _too_little(config, available_bytes, ranks * activation_bytes - free_bytes)
    return replace(
        config,
        cache=replace(config.cache, kv_tokens=kv_tokens),
        rank=replace(config.rank, activation_bytes=activation_bytes),
    )


def fixed_bytes(config: Config, model: ModelInfo) -> int:
    """What is needed whatever the sizes of pools and activations."""
    processes = config.cluster.ranks + config.cluster.decode_ranks
    exchange = config.cluster.ranks * exchange_bytes(model, model.context_tokens)
    return weights_bytes(model) + exchange + processes * PROCESS_BYTES


def weights_bytes(model: ModelInfo) -> int:
    """Of the matrices, which all ranks of the host share; norms and such are little beside them."""
    heads = (2 * model.heads + 2 * model.kv_heads) * model.head_dim
    experts = model.experts
    sparse_layers = len(experts.layers) if experts else 0
    dense = 3 * model.intermediate * (model.layers - sparse_layers)
    sparse = experts.count * (3 * experts.intermediate + 1) * sparse_layers if experts else 0
    vocab = model.vocab * (1 if model.tied_embeddings else 2)
    numbers = model.hidden * (model.layers * heads + dense + sparse + vocab)
    return numbers * DTYPE_BYTES[model.dtype]


def _available_bytes() -> int:
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(meminfo["MemAvailable"].removesuffix("kB")) * 1024


def _too_little(config: Config, available_bytes: int, missing_bytes: int) -> ConfigError:
    cache, cluster = config.cache, config.cluster
    return ConfigError(
        f"cache.kv_tokens = {cache.kv_tokens} on {cluster.ranks} ranks,"
        f" cache.decode_kv_tokens = {cache.decode_kv_tokens} on {cluster.decode_ranks} and"
        f" rank.activation_bytes = {config.rank.activation_bytes} with the weights need"
        f" {missing_bytes / GiB:.1f} GiB too much; {available_bytes / GiB:.1f} GiB are available,"
        f" of which {RESERVE_SHARE:.0%} are left to others"
    )


@dataclass(slots=True)
class MemoryFiles:
    """Anonymous memory files of one host, by descriptor. They vanish with their last process."""

    weights: int
    kv: list[int]
    exchange: list[int]
    decode_kv: list[int]

    @classmethod
    def create(cls, config: Config, model: ModelInfo) -> MemoryFiles:
        def make(name: str, size: int) -> int:
            fd = os.memfd_create(f"vertumnus-{name}", os.MFD_CLOEXEC)
            os.ftruncate(fd, size)
            return fd

        ranks = range(config.cluster.ranks)
        block_tokens = config.cache.block_tokens
        pool = kv_pool_bytes(model, config.kv_blocks, block_tokens)
        decode_pool = kv_pool_bytes(model, config.decode_kv_blocks, block_tokens)
        area = exchange_bytes(model, model.context_tokens)
        return cls(
            weights=make("weights", 0),  # the host helper gives it its size
            kv=[make(f"kv-{rank}", pool) for rank in ranks],
            exchange=[make(f"exchange-{rank}", area) for rank in ranks],
            decode_kv=[make("decode-kv", decode_pool) for _ in range(config.cluster.decode_ranks)],
        )

    def all(self) -> list[int]:
        return [self.weights, *self.kv, *self.exchange, *self.decode_kv]

    def close(self) -> None:
        for fd in self.all():
            os.close(fd)
