"""The exchange of ranks that do not see the same memory, by collectives: gloo on CPU, NCCL on CUDA.

* **meet** is one all-gather. Its parts must be of one size, so each rank's rows, its chunks behind
  one another, are padded to the longest; every rank knows from the spans where they belong.
* **fetch** begins one broadcast for each rank of the home that has blocks of the prefix. Called one
  layer ahead, it runs beside that layer's attention.

Shapes: C ranks, T padded rows of a rank, S suffix tokens, 2 for K and V, H KV heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from vertumnus_kernels.blocks import gather

from vertumnusd.rank.exchange import KV, Fetched, Prefix, Spans
from vertumnusd.rank.groups import Arrival, CollectiveError, Group
from vertumnusd.rank.kv_pool import KVPool


class CollectiveExchange:
    """An ``Exchange`` for the rank that has ``pool``; ``tokens`` is the longest suffix."""

    def __init__(self, rank: int, pool: KVPool, tokens: int) -> None:
        self.tokens = tokens
        self.turn = 0
        self._rank = rank
        self._pool = pool
        self._group: Group | None = None
        self._puts: list[KV] = []
        # Memory taken anew for every layer would cost a page fault for every page.
        self._own, self._gathered, self._suffix = _Buffer(), _Buffer(), _Buffer()

    def adopt(self, group: Group | None) -> None:
        self._group = group
        self._puts.clear()
        self.turn = 0

    def put(self, layer: int, start: int, k_THD: Tensor, v_THD: Tensor) -> None:
        """Where they start, the spans say."""
        self._puts.append((k_THD, v_THD))

    def meet(self, layer: int, tokens: int, spans: Spans) -> KV:
        assert self._group is not None
        rows = max(_tokens(own) for own in spans)
        own_2THD = self._own.take((2, rows), self._pool.kv_2NTHD[layer])
        row = 0
        for k_THD, v_THD in self._puts:
            stop = row + k_THD.shape[0]
            own_2THD[0, row:stop], own_2THD[1, row:stop] = k_THD, v_THD
            row = stop
        assert row == _tokens(spans[self._group.cp_rank])
        self._puts.clear()
        all_C2THD = self._gathered.take((len(spans), *own_2THD.shape[:2]), own_2THD)
        self._group.all_gather(all_C2THD, own_2THD)
        self.turn += 1
        return self._in_order(tokens, spans, all_C2THD)

    def fetch(self, layer: int, prefix: Prefix) -> Fetched:
        found = [self._broadcast(layer, rank, ids) for rank, ids in prefix]

        def fetched() -> list[KV]:
            for _, arrival in found:
                if arrival is not None:
                    arrival.wait()
            return [(kv_2SHD[0], kv_2SHD[1]) for kv_2SHD, _ in found]

        return fetched

    def copied_tokens(self, prefix: Prefix) -> int:
        """Those of a layer, while those of the next one arrive."""
        return 2 * self._pool.block_tokens * sum(len(ids) for _, ids in prefix)

    def skip(self, turn: int, begun: bool) -> None:
        """A step that no rank has begun passes in silence. One that they count on cannot: what is
        missing has sizes, and a rank that dropped out in the middle may not know them."""
        if begun and self._group is not None and self.turn < turn:
            raise CollectiveError("a step failed here while the other ranks count on its part")
        self.turn = turn

    def _broadcast(
        self, layer: int, rank: int, ids: Sequence[int]
    ) -> tuple[Tensor, Arrival | None]:
        pool_2NTHD = self._pool.kv_2NTHD[layer]
        if rank == self._rank:
            kv_2SHD = gather(pool_2NTHD, ids)
        else:
            tokens = len(ids) * self._pool.block_tokens
            kv_2SHD = pool_2NTHD.new_empty(2, tokens, *pool_2NTHD.shape[3:])
        if self._group is None:
            return kv_2SHD, None
        return kv_2SHD, self._group.broadcast(kv_2SHD, rank - self._group.base)

    def _in_order(self, tokens: int, spans: Spans, all_C2THD: Tensor) -> KV:
        """Each rank's rows to their places in the suffix."""
        suffix_2SHD = self._suffix.take((2, tokens), all_C2THD)
        for own, kv_2THD in zip(spans, all_C2THD, strict=True):
            row = 0
            for span in own:
                stop = row + span.stop - span.start
                suffix_2SHD[:, span] = kv_2THD[:, row:stop]
                row = stop
        return suffix_2SHD[0], suffix_2SHD[1]


class _Buffer:
    """Memory that is kept, and grows with what is asked of it."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def take(self, sizes: tuple[int, ...], like: Tensor) -> Tensor:
        """A contiguous tensor (*sizes, H, D) for K and V such as those of ``like``, over what was
        taken before."""
        shape = torch.Size((*sizes, *like.shape[-2:]))
        size_bytes = shape.numel() * like.itemsize
        if self._bytes.numel() < size_bytes:
            self._bytes = torch.empty(size_bytes, dtype=torch.uint8, device=like.device)
        return self._bytes[:size_bytes].view(like.dtype).view(shape)


def _tokens(spans: Sequence[slice]) -> int:
    return sum(span.stop - span.start for span in spans)
