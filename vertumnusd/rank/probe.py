"""What ranks of a host cost each other: the exchange of a layer, and a copy from pool to pool.

``python -m vertumnusd.rank.probe --fd N``: started by a profile beside its idle ranks, one probe
for each. It builds the groups and the exchange as a rank does, measures, sends one ``Probed``, and
ends. All probes of a group go through the same sizes in the same order.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from collections.abc import Callable
from itertools import cycle
from statistics import median

import msgspec
import torch

from vertumnusd.frames import write_frame
from vertumnusd.messages import Exchanged, Probed, RankStart
from vertumnusd.rank.__main__ import live_with_the_daemon
from vertumnusd.rank.assemble import open_exchange, open_pools
from vertumnusd.rank.exchange import Exchange
from vertumnusd.rank.groups import CPU, Group, Groups
from vertumnusd.rank.link import Link
from vertumnusd.rank.plan import split
from vertumnusd.rank.weights import DTYPES, map_shared

SUFFIX_TOKENS = (16, 256, 4096)
ROUNDS = 64
COPY_BYTES = 16 << 20
COPIES = 16
LAYER = 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    sock = socket.socket(fileno=parser.parse_args().fd)
    live_with_the_daemon()
    torch.set_num_threads(1)
    link = Link(sock)
    start = link.read_start()
    if start.core >= 0:
        os.sched_setaffinity(0, {start.core})
    try:
        write_frame(sock, msgspec.msgpack.encode(probe(start)))
    except Exception as error:
        link.fault(error)


def probe(start: RankStart) -> Probed:
    """Measure what this rank takes part in."""
    exchange = open_exchange(start, open_pools(start, CPU, own=False))
    groups = Groups(start)
    found = []
    for degree in start.cp_degrees:
        base = start.rank - start.rank % degree
        if degree == 1 or base + degree > len(start.kv_fds):
            continue
        group = groups.group(degree, base)
        for tokens in SUFFIX_TOKENS:
            if tokens <= exchange.tokens:
                elapsed_s = _exchange_s(exchange, group, start, tokens)
                found.append(Exchanged(degree, tokens, elapsed_s))
    return Probed(start.rank, found, _copy_bytes_s(start))


def _exchange_s(exchange: Exchange, group: Group, start: RankStart, tokens: int) -> float:
    """Median of showing this rank's chunks of one layer and having everybody's."""
    kept = start.model.kept(LAYER)
    by_rank = split(tokens, 0, group.degree)
    own, spans = by_rank[group.cp_rank], [[c.tokens for c in theirs] for theirs in by_rank]
    rows = sum(chunk.stop - chunk.start for chunk in own)
    k_THD = torch.zeros(rows, kept.kv_heads, kept.head_dim, dtype=DTYPES[kept.dtype])

    def once() -> None:
        for chunk in own:
            exchange.put(LAYER, chunk.start, k_THD[chunk.rows], k_THD[chunk.rows])
        exchange.meet(LAYER, tokens, spans)

    exchange.adopt(group)
    group.barrier()
    return _median_s(once, ROUNDS)


def _copy_bytes_s(start: RankStart) -> float:
    """Bytes a second from another rank's pool into this one's; 0 if there is no other rank.

    Each copy is of another part of the pools: one that is in a cache already says nothing. All are
    mapped before, as in a rank that serves. What was in the pools is lost.
    """
    ranks = len(start.kv_fds)
    if ranks == 1:
        return 0.0
    pool_bytes = os.fstat(start.kv_fds[start.rank]).st_size
    size_bytes = min(COPY_BYTES, pool_bytes)
    parts = cycle(range(0, pool_bytes - size_bytes + 1, size_bytes))
    source, target = (
        map_shared(start.kv_fds[rank % ranks], (pool_bytes,), torch.uint8, populate=True)
        for rank in (start.rank + 1, start.rank)
    )

    def once() -> None:
        part = next(parts)
        target[part : part + size_bytes] = source[part : part + size_bytes]

    return size_bytes / _median_s(once, COPIES)


def _median_s(call: Callable[[], object], rounds: int) -> float:
    times_s = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        times_s.append(time.perf_counter() - started)
    return median(times_s)


if __name__ == "__main__":
    main()
