"""Context-parallel prefill: runs layer ranges of requests over the ranks of a worker.

A rank computes its chunks of the uncached suffix (``plan.py``). Each chunk attends to the cached
prefix, fetched from the ranks of its span, to the suffix before it, and causally to itself; the
parts are merged by their log-sum-exp. K and V of the suffix pass through the exchange, from where
the owner of each block copies it into its pool. Between two steps of a request only its hidden
states wait here, so other requests may run in between.

The short requests of a pack share the products and one meeting a layer; attention is each one's
own, and so is its failure.

Shapes: T this rank's rows, N those of last tokens, S suffix tokens, P prefix tokens, E hidden,
H heads, D head dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vertumnusd.messages import Begin, RankStart, Step
from vertumnusd.rank.activation import StepLoad, window_rows
from vertumnusd.rank.device import finish
from vertumnusd.rank.exchange import KV, Exchange
from vertumnusd.rank.groups import Group, Groups
from vertumnusd.rank.job import Job, open_job
from vertumnusd.rank.kv_pool import KVPool
from vertumnusd.rank.models import Model
from vertumnusd.rank.pack import Pack, Share, Source, Window, open_pack
from vertumnusd.rank.plan import Chunks, StepPlan, plan_step, split


class PrefillError(RuntimeError):
    """This request cannot go on, on this rank; others can."""


class PlanMismatch(Exception):
    """The ranks of a worker were about to run different steps: a bug, and the end of this rank."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """By request: the logits (V,), float32, of the last tokens that this rank has, after the
    model's last layer; and why it failed here."""

    logits: dict[str, Tensor] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


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
        self._jobs: dict[str, Job] = {}

    def adopt(self, degree: int, base: int) -> None:
        """Use this geometry from the next Begin on. KeyError if this rank is in no such group."""
        self._group = self._groups.group(degree, base) if degree > 1 else None
        self._exchange.adopt(self._group)

    def begin(self, begin: Begin, writable: Mapping[int, int]) -> None:
        """Take a request on; ``writable``: which blocks of the chain go where in this rank's pool.

        Raises PrefillError, on every rank alike, for tokens that the model or the exchange cannot
        take.
        """
        self._check(begin)
        by_rank = split(len(begin.tokens) // 4, begin.cached_tokens, self._degree)
        job = open_job(
            begin, by_rank, self._cp_rank, writable, self._start.block_tokens, self._device
        )
        self._jobs[begin.request] = job

    @torch.inference_mode()
    def run(self, step: Step) -> StepResult:
        """Run one step. Requests that fail are unknown afterwards; the others go on.

        Whatever fails, this rank meets the others as often as the step does, for they go on, and
        the next step is everyone's. Raises CollectiveError at once.
        """
        plan = plan_step(step, self._degree)
        if self._start.debug_plans:
            self._compare(plan)
        end = self._exchange.turn + plan.last_layer - plan.first_layer
        result = StepResult()
        known = [
            (part, self._jobs[part.request]) for part in plan.parts if self.knows(part.request)
        ]
        for part in plan.parts:
            if not self.knows(part.request):
                result.failures[part.request] = "the request is not known here"
        try:
            if known:
                self._run(plan, open_pack(known), result)
            finish(self._device)  # the KV of these layers is pulled next
        except (RuntimeError, MemoryError) as error:
            result.logits.clear()
            result.failures.update((part.request, str(error)) for part, _ in known)
        for request in result.failures:
            self._jobs.pop(request, None)
        self._exchange.skip(end, begun=bool(known))
        return result

    def discard(self, request: str) -> None:
        """Forget the request; unknown ones are ignored."""
        self._jobs.pop(request, None)

    def knows(self, request: str) -> bool:
        return request in self._jobs

    @property
    def _degree(self) -> int:
        return self._group.degree if self._group else 1

    @property
    def _cp_rank(self) -> int:
        return self._group.cp_rank if self._group else 0

    def _check(self, begin: Begin) -> None:
        tokens = torch.frombuffer(bytearray(begin.tokens), dtype=torch.int32)
        limit = min(self._exchange.tokens, self._start.model.context_tokens - begin.cached_tokens)
        if not 1 <= len(tokens) <= limit:
            raise PrefillError(f"{len(tokens)} uncached tokens; 1 to {limit} can be computed")
        if not 0 <= int(tokens.min()) <= int(tokens.max()) < self._start.model.vocab:
            raise PrefillError(f"a token is not one of the {self._start.model.vocab}")

    def _compare(self, plan: StepPlan) -> None:
        """Debug mode: have every rank show its plan before any of them starts."""
        if self._group is None:
            return
        own_B = torch.frombuffer(bytearray(plan.digest()), dtype=torch.uint8).to(self._device)
        all_CB = own_B.new_empty(self._degree, own_B.numel())
        self._group.all_gather(all_CB, own_B)
        if not (all_CB == own_B).all():
            raise PlanMismatch(f"the ranks have different plans for step {plan.seq}: {plan}")

    # --- a step

    def _run(self, plan: StepPlan, pack: Pack, result: StepResult) -> None:
        windows = pack.windows(self._most_rows(plan, pack))
        if plan.first_layer == 0:
            for share in pack.shares:
                share.job.x_TE = self._model.embed(share.job.ids_T)
        x_TE = pack.hidden()
        self._fetch(pack, plan.first_layer)
        last = self._start.model.layers - 1
        for layer in range(plan.first_layer, min(plan.last_layer, last)):
            self._layer(plan, pack, layer, windows, x_TE)
        pack.keep(x_TE)
        if plan.last_layer > last:
            self._finish(plan, pack, x_TE, result)
        result.failures.update((s.part.request, s.failure) for s in pack.shares if s.failure)

    def _most_rows(self, plan: StepPlan, pack: Pack) -> int:
        """How many rows may go through a layer at once. Raises PrefillError if none may."""
        if plan.tokens > self._exchange.tokens:
            raise PrefillError(f"{plan.tokens} tokens in a step; at most {self._exchange.tokens}")
        mine = [share.job for share in pack.shares]
        waiting = [job for job in self._jobs.values() if job not in mine]
        copied = sum(self._exchange.copied_tokens(job.prefix) for job in mine)
        load = StepLoad.of(plan, sum(job.most_rows for job in waiting), copied)
        try:
            return window_rows(self._start.model, load, self._start.activation_bytes)
        except ValueError as error:
            raise PrefillError(str(error)) from error

    def _layer(
        self, plan: StepPlan, pack: Pack, layer: int, windows: Sequence[Window], x_TE: Tensor
    ) -> None:
        """One layer of all rows; ``x_TE`` becomes its output. What it needed is gone afterwards."""
        q_THD, sources = self._open_layer(plan, pack, layer, x_TE)
        self._close_layer(layer, windows, q_THD, sources, x_TE)

    def _open_layer(
        self, plan: StepPlan, pack: Pack, layer: int, x_TE: Tensor
    ) -> tuple[Tensor, dict[Share, Source]]:
        """Queries (T, H, D) of this rank's rows, and what they attend to; its blocks are stored."""
        q_THD, k_THD, v_THD = self._model.qkv(layer, x_TE, pack.positions_T)
        suffixes = self._meet(plan, pack, layer, k_THD, v_THD)
        prefixes = [share.ahead() for share in pack.shares if share.ahead is not None]
        if layer + 1 < plan.last_layer:
            self._fetch(pack, layer + 1)
        sources = {}
        for share, suffix, prefix in zip(pack.shares, suffixes, prefixes, strict=True):
            share.job.store(self._pool, layer, *suffix)
            sources[share] = Source(suffix, prefix)
        return q_THD, sources

    def _close_layer(
        self,
        layer: int,
        windows: Sequence[Window],
        q_THD: Tensor,
        sources: dict[Share, Source],
        x_TE: Tensor,
    ) -> None:
        """Attention and the rest of the layer; ``x_TE`` becomes its output."""
        for window in windows:
            attn = [
                self._attend(share, chunks, q_THD, sources[share])
                for share, chunks in window.chunks
            ]
            window_TE = x_TE[window.rows]
            attn_THD = attn[0] if len(attn) == 1 else torch.cat(attn)
            window_TE.copy_(self._model.finish(layer, window_TE, attn_THD))

    def _finish(self, plan: StepPlan, pack: Pack, x_TE: Tensor, result: StepResult) -> None:
        """The last layer: nothing follows but the logits of last tokens, so only these go on."""
        layer = self._start.model.layers - 1
        q_THD, sources = self._open_layer(plan, pack, layer, x_TE)
        shares, rows_N, windows = pack.last_rows()
        if not shares:
            return
        x_NE, q_NHD = x_TE.index_select(0, rows_N), q_THD.index_select(0, rows_N)
        self._close_layer(layer, windows, q_NHD, sources, x_NE)
        logits_NV = self._model.logits(x_NE).float().cpu()
        for share, logits_V in zip(shares, logits_NV, strict=True):
            if not share.failure:
                result.logits[share.part.request] = logits_V

    def _fetch(self, pack: Pack, layer: int) -> None:
        """Have the prefixes of a layer set out."""
        for share in pack.shares:
            share.ahead = self._exchange.fetch(layer, share.job.prefix)

    def _meet(
        self, plan: StepPlan, pack: Pack, layer: int, k_THD: Tensor, v_THD: Tensor
    ) -> list[KV]:
        """K and V of the whole suffix of each part, from all ranks of the worker."""
        if self._group is None:
            return [(k_THD[share.rows], v_THD[share.rows]) for share in pack.shares]
        chunks = {share.part.request: share.chunks for share in pack.shares}
        for part in plan.parts:
            for chunk in chunks.get(part.request, ()):
                start = part.offset + chunk.start
                self._exchange.put(layer, start, k_THD[chunk.rows], v_THD[chunk.rows])
            if part.request not in chunks:  # its place must be filled, with whatever
                for chunk in part.by_rank[self._cp_rank]:
                    none = k_THD.new_zeros(chunk.stop - chunk.start, *k_THD.shape[1:])
                    self._exchange.put(layer, part.offset + chunk.start, none, none)
        k_SHD, v_SHD = self._exchange.meet(layer, plan.tokens, plan.spans())
        return [(k_SHD[share.part.span], v_SHD[share.part.span]) for share in pack.shares]

    def _attend(self, share: Share, chunks: Chunks, q_THD: Tensor, source: Source) -> Tensor:
        """Attention of these chunks. If it fails, the request fails alone."""
        q_THD = q_THD[chunks[0].row : chunks[-1].rows.stop]
        if not share.failure:
            try:
                return source.attend(chunks, q_THD, self._start.model.head_dim**-0.5)
            except (RuntimeError, MemoryError) as error:
                share.failure = str(error)
        return torch.zeros(q_THD.shape)
