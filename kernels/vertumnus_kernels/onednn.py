"""Matrix products by oneDNN, and attention made of them.

torch gives float32 products on CPU to MKL, which leaves AVX-512 unused on AMD; oneDNN runs them at
twice the speed there. Its one way in from Python is the private operator behind compiled linear
layers. Two things about it shape this file. Strides it has no fast code for run a thousand times
slower, so inputs are contiguous. And each new pair of shapes has machine code generated, which
takes half a millisecond and keeps half a megabyte: so shapes are rounded up to a few that recur.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from vertumnus_kernels import flash_cpu
from vertumnus_kernels.merge import Part

EXACT_ROWS = 8  # up to here each row counts: generating a token is one row per request
ROW_STEP = 8

# Below so many queries, or visible (query, key) pairs, padding and the several operators of each
# block cost more than the products win.
MIN_QUERIES = 32
MIN_PAIRS = 1 << 14
QUERY_STEP = 16
MIN_BLOCK, MAX_BLOCK = 32, 128  # queries
SCORES_IN_CACHE = 1 << 20


def linear(x_TI: Tensor, w_OI: Tensor) -> Tensor:
    """As ``linear.linear``."""
    rows = x_TI.shape[0]
    if rows <= EXACT_ROWS or rows % ROW_STEP == 0:
        return _product(x_TI, w_OI)
    return _product(functional.pad(x_TI, (0, 0, 0, -rows % ROW_STEP)), w_OI)[:rows]


def attend(q_THD: Tensor, k_SKD: Tensor, v_SKD: Tensor, causal: bool, scale: float) -> Part:
    """As ``attention.attend``: group by group of query heads, block by block of queries.

    A block's scores against all its keys stay in the cache for the softmax and the product with
    the values. Queries and keys are padded with zeros to shapes that recur.
    """
    queries, heads, head_dim = q_THD.shape
    keys, kv_heads = k_SKD.shape[:2]
    pairs = queries * keys - (queries * queries // 2 if causal else 0)
    if queries < MIN_QUERIES or pairs < MIN_PAIRS:
        return flash_cpu.attend(q_THD, k_SKD, v_SKD, causal, scale)
    group = heads // kv_heads
    q_TKGD = (q_THD * scale).float().view(queries, kv_heads, group, head_dim)
    out_TKGD = torch.empty(queries, kv_heads, group, head_dim)
    lse_KGT = torch.empty(kv_heads, group, queries)
    more_queries, more_keys = -queries % QUERY_STEP, _key_bucket(keys) - keys
    for head in range(kv_heads):
        _attend_group(
            functional.pad(q_TKGD[:, head], (0, 0, 0, 0, 0, more_queries)),
            functional.pad(k_SKD[:, head].float(), (0, 0, 0, more_keys)),
            functional.pad(v_SKD[:, head].float(), (0, 0, 0, more_keys)).t(),
            keys,
            causal,
            out_TKGD[:, head],
            lse_KGT[head],
        )
    return out_TKGD.view(q_THD.shape), lse_KGT.view(heads, queries)


def _attend_group(
    q_TGD: Tensor,
    k_SD: Tensor,
    v_DS: Tensor,
    keys: int,
    causal: bool,
    out_TGD: Tensor,
    lse_GT: Tensor,
) -> None:
    """One KV head and its query heads, scaled and padded from ``keys`` keys; fills the last two."""
    queries, group = out_TGD.shape[:2]
    block = _block(group * keys)
    for start in range(0, queries, block):
        stop = min(start + block, queries)
        seen = keys - queries + stop if causal else keys
        width = _key_bucket(seen)
        scores_RS = _product(q_TGD[start : start + block].flatten(0, 1), k_SD[:width])
        if causal:
            _mask_future(scores_RS.view(-1, group, width), keys - queries + start)
        else:
            scores_RS[:, keys:] = float("-inf")
        peak_R = scores_RS.amax(-1)
        weights_RS = torch.softmax(scores_RS, -1, out=scores_RS)
        # The peak's weight is 1 / Σ exp(score − peak): its logarithm completes the log-sum-exp.
        lse_TG = peak_R.sub_(weights_RS.amax(-1).log_()).view(-1, group)
        out = _product(weights_RS, v_DS[:, :width]).view(-1, *out_TGD.shape[1:])
        lse_GT[:, start:stop] = lse_TG[: stop - start].t()
        out_TGD[start:stop] = out[: stop - start]


def _mask_future(scores_TGS: Tensor, past: int) -> None:
    """Query t sees keys ≤ past + t."""
    queries, _, width = scores_TGS.shape
    future_TS = torch.ones(queries, width - past, dtype=torch.bool).triu_(1)
    scores_TGS[:, :, past:].masked_fill_(future_TS.unsqueeze(1), float("-inf"))


def _block(scores_per_query: int) -> int:
    """Queries whose scores fit the cache: 128, 64 or 32."""
    fitting = max(SCORES_IN_CACHE // scores_per_query, MIN_BLOCK)
    return min(1 << fitting.bit_length() - 1, MAX_BLOCK)


def _key_bucket(keys: int) -> int:
    """``keys`` rounded up to one of eight widths in each octave, by 32 at least."""
    step = 1 << max(keys.bit_length() - 4, 5)
    return -(-keys // step) * step


def _product(x_TI: Tensor, w_OI: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x_TI, w_OI, None, "none", [], "")
    return product
