"""How much memory a step takes on a rank, predicted, and how it is made to take less.

For all its rows at once a layer holds hidden states, queries, keys and values. The rest (attention
and MLP) can go window by window of rows, with the same results to rounding. So a step runs in
windows as large as the budget lets them be: all rows in one, nearly always. Nothing is tried and
tried again: a step that would not fit even in the smallest windows is refused before it begins.

The prediction is of what the CPU kernels take; those for CUDA take less. It counts the rows of the
rank that has most, so that all ranks of a worker decide alike.

Bytes are of one row, unless a name or docstring says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from vertumnus_kernels.linear import SLAB_ROWS
from vertumnus_kernels.onednn import MAX_BLOCK, MIN_BLOCK, MIN_QUERIES, SCORES_IN_CACHE

from vertumnusd.messages import DTYPE_BYTES, ModelInfo
from vertumnusd.rank.plan import StepPlan

FLOAT = 4
INDEX_BYTES = 16  # token and position
SMALLEST_WINDOW = 64  # rows


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What decides the memory of a step."""

    rows: int  # of the rank that has most
    waiting_rows: int  # of requests that are paused
    keys: int  # the most that one attention call sees
    copied_tokens: int  # of cached prefixes that are not read in place

    @classmethod
    def of(cls, plan: StepPlan, waiting_rows: int, copied_tokens: int) -> StepLoad:
        return cls(
            rows=sum(part.most_rows() for part in plan.parts),
            waiting_rows=waiting_rows,
            keys=max(max(part.cached_tokens, part.suffix_tokens) for part in plan.parts),
            copied_tokens=copied_tokens,
        )


def window_rows(model: ModelInfo, load: StepLoad, budget_bytes: int) -> int:
    """The most rows that may go through a layer at once; budget 0 has no limit.

    Raises ValueError if the step does not fit in the budget whatever its windows.
    """
    window = max(load.rows, 1)
    while budget_bytes and peak_bytes(model, load, window) > budget_bytes:
        if window <= SMALLEST_WINDOW:
            least = peak_bytes(model, load, window)
            raise ValueError(
                f"the step needs {least} bytes of activation memory; {budget_bytes} are allowed"
            )
        window = max(SMALLEST_WINDOW, -(-window // 2))
    return window


def peak_bytes(model: ModelInfo, load: StepLoad, window: int) -> int:
    """Predicted bytes of a step that goes through its layers in windows of so many rows."""
    window = min(window, load.rows)
    standing = load.rows * (
        INDEX_BYTES + _hidden(model) + _qkv(model)
    ) + load.waiting_rows * _hidden(model)
    standing += load.copied_tokens * model.kept(0).token_bytes
    opening = min(load.rows, SLAB_ROWS) * (3 * _hidden(model) + _qkv(model))
    attending = window * 4 * _attention(model) + _attention_fixed(model, load.keys, window)
    finishing = window * 2 * _attention(model) + max(_mlp(model, window), _experts(model, window))
    return standing + max(opening, attending, finishing)


def _hidden(model: ModelInfo) -> int:
    return FLOAT * model.hidden


def _qkv(model: ModelInfo) -> int:
    heads = model.heads + 2 * model.kv_heads
    return DTYPE_BYTES[model.dtype] * heads * model.head_dim


def _attention(model: ModelInfo) -> int:
    """One output with its log-sum-exp. Two are merged into a third, beside the scaled queries."""
    return FLOAT * model.heads * (model.head_dim + 1)


def _attention_fixed(model: ModelInfo, keys: int, queries: int) -> int:
    """Bytes of one call: keys and values of one head, widened and padded, and scores of two blocks.

    With few queries those of all heads are widened, and there are no scores.
    """
    if queries < MIN_QUERIES:
        return 2 * FLOAT * keys * model.kv_heads * model.head_dim
    padded = keys + keys // 8
    group = model.heads // model.kv_heads
    block = min(MAX_BLOCK, max(MIN_BLOCK, SCORES_IN_CACHE // (group * keys)))
    return FLOAT * padded * (2 * model.head_dim + group * min(queries, 2 * block))


def _mlp(model: ModelInfo, window: int) -> int:
    """Bytes of the MLP of a window, of which one slab is under way."""
    row = 5 * _hidden(model) + 3 * DTYPE_BYTES[model.dtype] * model.intermediate
    return min(window, SLAB_ROWS) * row


def _experts(model: ModelInfo, window: int) -> int:
    """Bytes of a window's experts; of one of them a slab of rows is under way."""
    experts = model.experts
    if experts is None:
        return 0
    width = DTYPE_BYTES[model.dtype]
    inputs = _hidden(model) + width * model.hidden
    choice = 2 * FLOAT * experts.count + 5 * 8 * experts.per_token
    expert = width * (2 * model.hidden + 3 * experts.intermediate) + _hidden(model)
    return window * (inputs + choice) + min(window, SLAB_ROWS) * expert
