"""Copies of blocks from one rank's pool to another's: their rate, and what they take from a step.

Rate: 16 MB through ``PoolCopier``, as a transfer thread moves them, beside two memcpys of as many
bytes (into an area that both sides see, and out of it again), in turns. The CPU seconds of the
copying thread are compared, so other work on the machine does not count.

Background: a real transfer thread with the default limit, its CPU seconds for each byte times the
limit: the share of a core that it takes at most. And the CPU seconds of one and the same product of
matrices in the main thread, with and without the copies beside it.

    python benchmarks/transfer.py
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import torch
from harness import median, result, say

from vertumnusd.control.transfer import TransferLimits
from vertumnusd.layout import kv_pool_bytes
from vertumnusd.messages import HASH_BYTES, Install, Installed, ModelInfo, ReserveCopy
from vertumnusd.rank.cache import Cache
from vertumnusd.rank.kv_copy import PoolCopier
from vertumnusd.rank.kv_pool import KVPool
from vertumnusd.rank.transfer import BlockCopy, Transfers

COPY_BYTES = 16 << 20
BLOCK_TOKENS = 16
ROUNDS = 31
MODEL = ModelInfo(
    name="m", architecture="llama", layers=32, hidden=1024, heads=16, kv_heads=4, head_dim=64,
    intermediate=1024, vocab=8, context_tokens=65_536, norm_eps=1e-5, rope_theta=1e4,
    tied_embeddings=True, dtype="bfloat16",
)  # fmt: skip
BLOCK_BYTES = BLOCK_TOKENS * MODEL.kv_bytes_per_token
BLOCKS = COPY_BYTES // BLOCK_BYTES


def pool() -> KVPool:
    fd = os.memfd_create("pool")
    os.ftruncate(fd, kv_pool_bytes(MODEL, 2 * BLOCKS, BLOCK_TOKENS))
    return KVPool(fd, 2 * BLOCKS, MODEL, BLOCK_TOKENS, own=True)


def copy_s(copier: PoolCopier, copies: Sequence[BlockCopy]) -> float:
    started = time.thread_time()
    assert sum(copier.pieces(copies)) == COPY_BYTES
    return time.thread_time() - started


def two_memcpys_s(source: torch.Tensor, shared: torch.Tensor, target: torch.Tensor) -> float:
    started = time.thread_time()
    shared.copy_(source)
    target.copy_(shared)
    return time.thread_time() - started


class Timed:
    """A copier that counts the CPU seconds of whoever copies."""

    def __init__(self, copier: PoolCopier) -> None:
        self.copier, self.cpu_s = copier, 0.0

    def pieces(self, copies: Sequence[BlockCopy]) -> Iterator[int]:
        begun = time.thread_time()
        for copied in self.copier.pieces(copies):
            yield copied
            # What the thread does between two pieces, waiting and waking, counts too.
            self.cpu_s, begun = self.cpu_s + time.thread_time() - begun, time.thread_time()


def in_background(copier: Timed, said: SimpleQueue[Any], limit: float) -> Transfers:
    link: Any = SimpleNamespace(send=said.put, fault=said.put)
    start: Any = SimpleNamespace(rank=1, kv_blocks=2 * BLOCKS)
    transfers = Transfers(1, 2, Cache(start, link), link)
    threading.Thread(target=transfers.copy, args=(copier,), daemon=True).start()
    chain = os.urandom(HASH_BYTES * BLOCKS)
    transfers.receive(ReserveCopy(1, 1, chain, 1, 1))
    blocks = array("I", range(BLOCKS)).tobytes()
    transfers.receive(Install(1, 1, blocks, bytes(4 * BLOCKS), blocks, limit))
    return transfers


def step_s(a_NN: torch.Tensor) -> float:
    started = time.thread_time()
    for _ in range(4):
        a_NN @ a_NN
    return time.thread_time() - started


def main() -> None:
    torch.set_num_threads(1)
    pools = [pool(), pool()]
    copier, limit = PoolCopier(pools, 1), TransferLimits().bytes_per_s
    copies = [BlockCopy(0, block, block) for block in range(BLOCKS)]
    plain = [torch.frombuffer(mmap.mmap(-1, COPY_BYTES), dtype=torch.uint8) for _ in range(3)]
    a_NN = torch.randn(512, 512)
    copy_s(copier, copies), two_memcpys_s(*plain), step_s(a_NN)  # touch every page

    copied, memcpys = [], []
    for _ in range(ROUNDS):
        copied.append(copy_s(copier, copies))
        memcpys.append(two_memcpys_s(*plain))
    say(f"{COPY_BYTES / median(copied) / 1e9:.1f} GB/s of CPU time, 80 % of two memcpys wanted")

    timed, said = Timed(copier), SimpleQueue[Any]()
    alone = [step_s(a_NN) for _ in range(ROUNDS)]
    in_background(timed, said, limit)
    beside = []
    while not any(isinstance(said.get(), Installed) for _ in range(said.qsize())):
        beside.append(step_s(a_NN))
    result(
        copy_gb_per_cpu_s=round(COPY_BYTES / median(copied) / 1e9, 2),
        two_memcpys_gb_per_cpu_s=round(COPY_BYTES / median(memcpys) / 1e9, 2),
        background_share_of_a_core=round(timed.cpu_s / COPY_BYTES * limit, 4),
        step_beside_copies=round(median(beside) / median(alone), 3),
        steps=len(beside),
        ratio=round(median(memcpys) / median(copied), 2),
    )


if __name__ == "__main__":
    main()
