"""A layer's experts in the shape of Qwen3-30B-A3B, beside transformers' block on the same weights.

Few rows are what a decode iteration has, many what a prefill has. The weights of the experts that
are used have to come out of memory, which with few rows is most of the time on either side. Both
take turns and are measured in CPU time of one thread. The ratio is the smallest, over rows and
dtypes, of transformers' time over ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from harness import median, result, say
from torch import Tensor
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from vertumnusd.messages import Experts
from vertumnusd.rank.models.qwen3_moe import add_experts

HIDDEN = 2048
EXPERTS = Experts(count=128, per_token=8, intermediate=768, normalised=True, layers=(0,))
ROWS = (1, 4, 64, 512)
ROUNDS = 7
DTYPES = (torch.bfloat16, torch.float32)


def random_weights(dtype: torch.dtype) -> dict[str, Tensor]:
    """Of one layer, under our names."""
    rows = EXPERTS.count * EXPERTS.intermediate
    shapes = {
        "router": (EXPERTS.count, HIDDEN),
        "experts_gate_up": (2 * rows, HIDDEN),
        "experts_down": (EXPERTS.count * HIDDEN, EXPERTS.intermediate),
    }
    return {name: torch.randn(*shape, dtype=dtype).mul_(0.02) for name, shape in shapes.items()}


def theirs(weights: dict[str, Tensor]) -> Qwen3MoeSparseMoeBlock:
    """transformers' block over the same memory."""
    config = Qwen3MoeConfig(
        hidden_size=HIDDEN,
        num_experts=EXPERTS.count,
        num_experts_per_tok=EXPERTS.per_token,
        moe_intermediate_size=EXPERTS.intermediate,
        norm_topk_prob=EXPERTS.normalised,
    )
    with torch.device("meta"):
        block = Qwen3MoeSparseMoeBlock(config).eval()
    state = {
        "gate.weight": weights["router"],
        "experts.gate_up_proj": weights["experts_gate_up"].view(EXPERTS.count, -1, HIDDEN),
        "experts.down_proj": weights["experts_down"].view(EXPERTS.count, HIDDEN, -1),
    }
    block.load_state_dict(state, assign=True)
    return block


def cpu_s(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


@torch.inference_mode()
def compare(weights: dict[str, Tensor], block: Qwen3MoeSparseMoeBlock, rows: int) -> float:
    """How many times as long transformers takes."""
    dtype = weights["router"].dtype
    x_TE = torch.randn(rows, HIDDEN)
    sum_TE = torch.zeros_like(x_TE)
    sides = {
        "ours": lambda: add_experts(weights, EXPERTS, x_TE, sum_TE.zero_()),
        "transformers": lambda: block(x_TE.to(dtype).unsqueeze(0)),
    }
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, work in sides.items():
            found[name].append(cpu_s(work))
    ours, other = (median(found[name]) for name in sides)
    say(f"{dtype}, {rows} rows: {1e3 * ours:.1f} ms, transformers {1e3 * other:.1f} ms")
    return other / ours


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ratios = {}
    for dtype in DTYPES:
        weights = random_weights(dtype)
        block = theirs(weights)
        for rows in ROWS:
            ratios[f"{dtype}_{rows}".removeprefix("torch.")] = compare(weights, block, rows)
        del weights, block
    result(**ratios, target=1.0, ratio=min(ratios.values()))


if __name__ == "__main__":
    main()
