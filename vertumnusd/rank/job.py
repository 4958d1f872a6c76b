"""One request's prefill on one rank: where its tokens come from and where its KV goes.

Shapes: T this rank's rows, E hidden.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vertumnusd.layout import owned_blocks
from vertumnusd.messages import Begin
from vertumnusd.rank.exchange import Prefix
from vertumnusd.rank.kv_pool import KVPool
from vertumnusd.rank.plan import Chunks, block_runs


@dataclass(slots=True, eq=False)
class Job:
    """What a rank keeps of a request between its Begin and its last step."""

    suffix_tokens: int
    chunks: Chunks
    most_rows: int  # of any rank of the worker
    ids_T: Tensor
    positions_T: Tensor
    prefix: Prefix  # the cached blocks
    stores: list[tuple[slice, int]]  # complete suffix blocks → pool ids; see plan.block_runs
    tail_id: int | None  # where the incomplete last block goes, if that is in our pool
    x_TE: Tensor | None = None  # hidden states, once the first layer has begun

    @property
    def rows(self) -> int:
        return self.ids_T.numel()

    @property
    def has_last(self) -> bool:
        """Whether this rank computes the prompt's last token."""
        return bool(self.chunks) and self.chunks[-1].stop == self.suffix_tokens

    def store(self, pool: KVPool, layer: int, k_SHD: Tensor, v_SHD: Tensor) -> None:
        """Copy the blocks of the suffix that this rank owns into its pool."""
        full_tokens = self.suffix_tokens - self.suffix_tokens % pool.block_tokens
        k_NTHD, v_NTHD = (
            kv[:full_tokens].view(-1, pool.block_tokens, *kv.shape[1:]) for kv in (k_SHD, v_SHD)
        )
        for blocks, first_id in self.stores:
            pool.write_blocks(layer, first_id, k_NTHD[blocks], v_NTHD[blocks])
        if self.tail_id is not None:
            pool.write(layer, self.tail_id, 0, k_SHD[full_tokens:], v_SHD[full_tokens:])


def open_job(
    begin: Begin,
    by_rank: Sequence[Chunks],
    cp_rank: int,
    writable: Mapping[int, int],
    block_tokens: int,
    device: torch.device,
) -> Job:
    """The job of one rank; ``writable``: which blocks of the chain go where in its pool."""
    chunks = by_rank[cp_rank]
    tokens = torch.frombuffer(bytearray(begin.tokens), dtype=torch.int32).to(device)
    rows_T = torch.cat([torch.arange(0), *(torch.arange(c.start, c.stop) for c in chunks)])
    first_block = begin.cached_tokens // block_tokens
    full_blocks, tail = divmod(len(tokens), block_tokens)
    block_ids = array("I", begin.block_ids)
    return Job(
        suffix_tokens=len(tokens),
        chunks=chunks,
        most_rows=max(c[-1].rows.stop if c else 0 for c in by_rank),
        ids_T=tokens[rows_T],
        positions_T=rows_T + begin.cached_tokens,
        prefix=_prefix(begin, block_ids, first_block),
        stores=block_runs(writable, first_block, full_blocks),
        tail_id=writable.get(first_block + full_blocks) if tail else None,
    )


def _prefix(begin: Begin, block_ids: Sequence[int], cached_blocks: int) -> Prefix:
    """The cached blocks of the chain, by the rank that owns them."""
    span = range(begin.home_base, begin.home_base + begin.home_ranks)
    owned = (
        (rank, owned_blocks(rank, cached_blocks, span.start, begin.rotation, len(span)))
        for rank in span
    )
    return [(rank, [block_ids[b] for b in blocks]) for rank, blocks in owned if blocks]
