"""Memory that the ranks of a host share: weights, KV pools, exchange areas.

Anonymous memory files, handed down by descriptor: they vanish with the last process that has them,
and nothing is left behind in any file system.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from vertumnusd.config import Config, ConfigError
from vertumnusd.layout import exchange_bytes, kv_pool_bytes
from vertumnusd.messages import ModelInfo

GiB = 1 << 30


def check_memory(config: Config, model: ModelInfo) -> None:
    """Raise ConfigError if the KV pools, whose memory is taken at start, exceed what is free.

    Without this the kernel would pick a process to kill, and not always one of ours. Pools on CUDA
    devices take none of it.
    """
    if config.rank.device == "cuda":
        return
    blocks = (
        config.cluster.ranks * config.kv_blocks
        + config.cluster.decode_ranks * config.decode_kv_blocks
    )
    needed = kv_pool_bytes(model, blocks, config.cache.block_tokens)
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(meminfo["MemAvailable"].removesuffix("kB")) * 1024
    if needed > available:
        raise ConfigError(
            f"cache.kv_tokens = {config.cache.kv_tokens} on {config.cluster.ranks} ranks and"
            f" cache.decode_kv_tokens = {config.cache.decode_kv_tokens} on"
            f" {config.cluster.decode_ranks} need {needed / GiB:.1f} GiB of memory;"
            f" {available / GiB:.1f} GiB are available"
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
