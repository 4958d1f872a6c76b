"""Faults that a context-parallel engine is prone to, to be put into a rank that runs.

Each is one line that somebody could write. The tests show that they notice every one of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from vertumnus_kernels import attention
from vertumnus_kernels.attention import Implementation, Part, merge

from vertumnusd.rank.exchange import KV
from vertumnusd.rank.models.llama import Llama
from vertumnusd.rank.prefill import Prefill
from vertumnusd.rank.shared_exchange import SharedExchange

PADDED_TO = 16
ORIGINAL = attention.implementation()

_installed = contextlib.ExitStack()  # of this rank


def padding_counted_as_tokens(*call: Any) -> Part:
    q_THD, k_SKD, v_SKD, causal, scale = call
    more = -k_SKD.shape[0] % PADDED_TO
    padded = (functional.pad(kv, (0, 0, 0, 0, more, 0)) for kv in (k_SKD, v_SKD))
    return ORIGINAL.attend(q_THD, *padded, causal, scale)


def diagonal_counted_twice(*call: Any) -> Part:
    q_THD, k_SKD, v_SKD, causal, scale = call
    found = ORIGINAL.attend(*call)
    if not causal:
        return found
    queries, group = q_THD.shape[0], q_THD.shape[1] // k_SKD.shape[1]
    own_THD, v_THD = (kv[-queries:].float().repeat_interleave(group, 1) for kv in (k_SKD, v_SKD))
    return merge([found, (v_THD, (q_THD.float() * own_THD).sum(-1).t() * scale)])


def row_that_saw_no_key_merged(*call: Any) -> Part:
    out_THD, lse_HT = ORIGINAL.attend(*call)
    return merge([(out_THD, lse_HT), (torch.zeros_like(out_THD), torch.zeros_like(lse_HT))])


@contextmanager
def _attention(attend: Callable[..., Part]) -> Iterator[None]:
    with _replaced(attention, "implementation", lambda *_: Implementation("mutant", attend)):
        yield


@contextmanager
def rope_at_local_positions() -> Iterator[None]:
    original = Llama.qkv

    def qkv(model: Llama, layer: int, x_TE: Tensor, positions_T: Tensor) -> Any:
        return original(model, layer, x_TE, torch.arange(len(x_TE)))

    with _replaced(Llama, "qkv", qkv):
        yield


@contextmanager
def empty_prefix_attended_to() -> Iterator[None]:
    original = SharedExchange.fetch

    def fetch(exchange: SharedExchange, layer: int, prefix: Any) -> Callable[[], list[KV]]:
        fetched = original(exchange, layer, prefix)
        nothing = exchange._pools[0].run(layer, 0, 0)
        return lambda: [*fetched(), (nothing[0], nothing[1])]

    with _replaced(SharedExchange, "fetch", fetch):
        yield


MUTANTS: dict[str, Callable[[], Any]] = {
    "padding counted as tokens": lambda: _attention(padding_counted_as_tokens),
    "diagonal counted twice": lambda: _attention(diagonal_counted_twice),
    "row that saw no key merged": lambda: _attention(row_that_saw_no_key_merged),
    "RoPE at local positions": rope_at_local_positions,
    "empty prefix attended to": empty_prefix_attended_to,
}


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def install(_: Prefill, name: str) -> None:
    """To be called on a rank."""
    _installed.enter_context(MUTANTS[name]())


def undo(_: Prefill) -> None:
    """To be called on a rank."""
    _installed.close()
