"""Context-parallel prefill: runs layer ranges of requests over the ranks of a worker.

A rank computes its zigzag chunks of the uncached suffix. Each chunk attends to the cached prefix,
fetched from the ranks of its span, to the suffix before it, and causally to itself; the parts are
merged by their log-sum-exp. K and V of the suffix pass through the exchange, from where the owner
of each block copies it into its pool. Between two steps of a request only its hidden states wait
here, so other requests may run in between.

Shapes: T this rank's rows, S suffix tokens, P prefix tokens, E hidden, H heads, D head dim,
V vocabulary.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from vertumnus_kernels.attention import attend, merge

from vertumnusd.layout import owned_blocks
from vertumnusd.messages import Begin, RankStart
from vertumnusd.rank.device import finish
from vertumnusd.rank.exchange import KV, Exchange, Fetched, Prefix, Spans
from vertumnusd.rank.groups import Group, Groups
from vertumnusd.rank.kv_pool import KVPool
from vertumnusd.rank.models import Model
from vertumnusd.rank.plan import Chunk, block_runs, chunks


class PrefillError(RuntimeError):
    """This request cannot go on, on this rank; others can."""


@dataclass(slots=True)
class _Job:
    """One request on this rank: where its tokens come from and where its KV goes."""

    suffix_tokens: int
    chunks: tuple[Chunk, ...]
    ids_T: Tensor
    positions_T: Tensor
    spans: Spans  # of all ranks
    prefix: Prefix  # the cached blocks
    stores: list[tuple[slice, int]]  # complete suffix blocks → pool ids; see plan.block_runs
    tail_id: int | None  # where the incomplete last block goes, if that is in our pool
    ahead: Fetched | None = None  # the prefix of the layer to come
    x_TE: Tensor | None = None  # hidden states, once the first layer has begun

    @property
    def has_last(self) -> bool:
        """Whether this rank computes the prompt's last token."""
        return bool(self.chunks) and self.chunks[-1].stop == self.suffix_tokens


class Prefill:
    """The prefills of one rank, whose KV pool is ``pool``."""

    def __init__(
        self,
        start: RankStart,
        model: Model,
        pool: KVPool,
        exchange: Exchange,
        groups: Groups,
        device: torch.device,
    ) -> None:
        self._start = start
        self._model = model
        self._pool = pool
        self._exchange = exchange
        self._groups = groups
        self._device = device
        self._group: Group | None = None  # None at degree 1
        self._jobs: dict[str, _Job] = {}

    def adopt(self, degree: int, base: int) -> None:
        """Use this geometry from the next Begin on. KeyError if this rank is in no such group."""
        self._group = self._groups.group(degree, base) if degree > 1 else None
        self._exchange.adopt(self._group)

    def begin(self, begin: Begin, writable: Mapping[int, int]) -> None:
        """Take a request on; ``writable``: which blocks of the chain go where in this rank's pool.

        Raises PrefillError, on every rank alike, for tokens that the model or the exchange cannot
        take.
        """
        tokens = torch.frombuffer(bytearray(begin.tokens), dtype=torch.int32).to(self._device)
        self._check(tokens, begin.cached_tokens)
        degree, cp_rank = (self._group.degree, self._group.cp_rank) if self._group else (1, 0)
        by_rank = [chunks(len(tokens), degree, rank) for rank in range(degree)]
        own = by_rank[cp_rank]
        rows_T = torch.cat([torch.arange(0), *(torch.arange(c.start, c.stop) for c in own)])
        first_block = begin.cached_tokens // self._start.block_tokens
        full_blocks, tail = divmod(len(tokens), self._start.block_tokens)
        block_ids = array("I", begin.block_ids)
        self._jobs[begin.request] = _Job(
            suffix_tokens=len(tokens),
            chunks=own,
            ids_T=tokens[rows_T],
            positions_T=rows_T + begin.cached_tokens,
            spans=[[chunk.tokens for chunk in each] for each in by_rank],
            prefix=self._prefix(begin, block_ids, first_block),
            stores=block_runs(writable, first_block, full_blocks),
            tail_id=writable.get(first_block + full_blocks) if tail else None,
        )

    @torch.inference_mode()
    def run(self, request: str, first_layer: int, last_layer: int) -> Tensor | None:
        """Run layers ``first_layer`` … ``last_layer - 1``.

        After the model's last layer the rank with the prompt's last token returns its logits (V,)
        in float32. Raises PrefillError for an unknown request, and for a failure, after which the
        request is unknown; but not before having met the other ranks as often as the step does,
        for they go on, and the next step is everyone's. CollectiveError is raised at once.
        """
        end = self._exchange.turn + last_layer - first_layer
        try:
            if request not in self._jobs:
                raise PrefillError("the request is not known here")
            logits_V = self._run(self._jobs[request], first_layer, last_layer)
            finish(self._device)  # the KV of these layers is pulled next
            return logits_V
        except (RuntimeError, MemoryError) as error:
            begun = self._jobs.pop(request, None) is not None
            self._exchange.skip(end, begun)
            raise PrefillError(str(error)) from error

    def discard(self, request: str) -> None:
        """Forget the request; unknown ones are ignored."""
        self._jobs.pop(request, None)

    def knows(self, request: str) -> bool:
        return request in self._jobs

    def _check(self, tokens: Tensor, cached_tokens: int) -> None:
        limit = min(self._exchange.tokens, self._start.model.context_tokens - cached_tokens)
        if not 1 <= len(tokens) <= limit:
            raise PrefillError(f"{len(tokens)} uncached tokens; 1 to {limit} can be computed")
        if not 0 <= int(tokens.min()) <= int(tokens.max()) < self._start.model.vocab:
            raise PrefillError(f"a token is not one of the {self._start.model.vocab}")

    def _prefix(self, begin: Begin, block_ids: Sequence[int], cached_blocks: int) -> Prefix:
        """The cached blocks of the chain, by the rank that owns them."""
        home = range(begin.home_base, begin.home_base + begin.home_ranks)
        owned = (
            (rank, owned_blocks(rank, cached_blocks, home.start, begin.rotation, len(home)))
            for rank in home
        )
        return [(rank, [block_ids[b] for b in blocks]) for rank, blocks in owned if blocks]

    def _run(self, job: _Job, first_layer: int, last_layer: int) -> Tensor | None:
        if first_layer == 0:
            job.x_TE = self._model.embed(job.ids_T)
        x_TE = job.x_TE
        assert x_TE is not None, "the first step of a request starts at layer 0"
        job.ahead = self._exchange.fetch(first_layer, job.prefix)
        for layer in range(first_layer, last_layer):
            x_TE = self._layer(job, layer, x_TE, last_layer)
        job.x_TE = x_TE
        if last_layer < self._start.model.layers or not job.has_last:
            return None
        return self._model.logits(x_TE)[0].float().cpu()

    def _layer(self, job: _Job, layer: int, x_TE: Tensor, last_layer: int) -> Tensor:
        q_THD, k_THD, v_THD = self._model.qkv(layer, x_TE, job.positions_T)
        k_SHD, v_SHD = self._suffix(job, layer, k_THD, v_THD)
        prefix = self._fetched(job, layer, last_layer)
        self._store(job, layer, k_SHD, v_SHD)
        own = job.chunks
        if layer == self._start.model.layers - 1:
            # Nothing follows but the last token's logits, so only its row goes on.
            if not job.has_last:
                return x_TE[:0]
            own = (Chunk(job.suffix_tokens - 1, job.suffix_tokens, 0),)
            q_THD, x_TE = q_THD[-1:], x_TE[-1:]
        if not own:
            return x_TE
        attn_THD = self._attend(own, q_THD, k_SHD, v_SHD, prefix)
        return self._model.finish(layer, x_TE, attn_THD)

    def _suffix(self, job: _Job, layer: int, k_THD: Tensor, v_THD: Tensor) -> KV:
        """K and V of the whole suffix, from all ranks of the worker."""
        if self._group is None:
            return k_THD, v_THD
        for chunk in job.chunks:
            self._exchange.put(layer, chunk.start, k_THD[chunk.rows], v_THD[chunk.rows])
        return self._exchange.meet(layer, job.suffix_tokens, job.spans)

    def _fetched(self, job: _Job, layer: int, last_layer: int) -> list[KV]:
        """The cached prefix at this layer; that of the step's next layer sets out."""
        assert job.ahead is not None
        prefix = job.ahead()
        if layer + 1 < last_layer:
            job.ahead = self._exchange.fetch(layer + 1, job.prefix)
        return prefix

    def _store(self, job: _Job, layer: int, k_SHD: Tensor, v_SHD: Tensor) -> None:
        """Copy the suffix blocks that this rank owns into its pool."""
        pool = self._pool
        full_tokens = job.suffix_tokens - job.suffix_tokens % pool.block_tokens
        k_NTHD, v_NTHD = (
            kv[:full_tokens].view(-1, pool.block_tokens, *kv.shape[1:]) for kv in (k_SHD, v_SHD)
        )
        for blocks, first_id in job.stores:
            pool.write_blocks(layer, first_id, k_NTHD[blocks], v_NTHD[blocks])
        if job.tail_id is not None:
            pool.write(layer, job.tail_id, 0, k_SHD[full_tokens:], v_SHD[full_tokens:])

    def _attend(
        self,
        own: Sequence[Chunk],
        q_THD: Tensor,
        k_SHD: Tensor,
        v_SHD: Tensor,
        prefix: Sequence[KV],
    ) -> Tensor:
        """Attention of the chunks: all of them over the prefix, each over the suffix up to it."""
        scale = self._start.model.head_dim**-0.5
        suffix = [attend(q_THD[c.rows], k_SHD[: c.stop], v_SHD[: c.stop], True, scale) for c in own]
        parts = [(torch.cat([out for out, _ in suffix]), torch.cat([lse for _, lse in suffix], 1))]
        parts += [attend(q_THD, k_PHD, v_PHD, False, scale) for k_PHD, v_PHD in prefix]
        return merge(parts)[0]
