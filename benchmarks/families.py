"""A prefill of each family, by itself, beside transformers with its SDPA attention.

Random weights in a small shape; both sides take turns and are measured in CPU time of one thread,
of which the least of several rounds counts. The ratio is the smallest, over families, dtypes and
lengths, of transformers' time over ours.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness import result, say
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from vertumnus_kernels.attention import attend

from vertumnusd.checkpoint import model_info
from vertumnusd.rank.load import load, tensor_specs
from vertumnusd.rank.models import Model, build
from vertumnusd.rank.weights import map_weights

ROUNDS = 4
LENGTHS = (512, 2048)
SIZES: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 8192,
}
EXPERTS = {
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 384,
    "norm_topk_prob": True,
}
FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)),
    "qwen3_moe": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **EXPERTS)),
}


def ours(folder: Path, dtype: str) -> Model:
    info = model_info(folder, "", dtype)
    fd = os.memfd_create("weights")
    for _ in load(folder, info, fd):
        pass
    model = build(info, map_weights(fd, tensor_specs(info)[0], dtype))
    os.close(fd)
    return model


def prefill(model: Model, ids_T: Tensor) -> Tensor:
    x_TE, positions_T = model.embed(ids_T), torch.arange(len(ids_T))
    for layer in range(model.info.layers):
        q_THD, k_TKD, v_TKD = model.qkv(layer, x_TE, positions_T)
        attn_THD, _ = attend(q_THD, k_TKD, v_TKD, True, model.info.head_dim**-0.5)
        x_TE = model.finish(layer, x_TE, attn_THD)
    return model.logits(x_TE[-1:])


def cpu_s(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


@torch.inference_mode()
def compare(model: Model, other: PreTrainedModel, length: int) -> float:
    """How many times as long transformers takes."""
    ids_T = torch.randint(0, SIZES["vocab_size"], (length,))
    rounds = [
        (
            cpu_s(lambda: prefill(model, ids_T)),
            cpu_s(lambda: other(ids_T.unsqueeze(0), logits_to_keep=1, use_cache=False)),
        )
        for _ in range(ROUNDS)
    ]
    own, theirs = (min(side) for side in zip(*rounds, strict=True))
    name = f"{model.info.architecture}, {model.info.dtype}, {length} tokens"
    say(f"{name}: {1e3 * own:.0f} ms, transformers {1e3 * theirs:.0f} ms")
    return theirs / own


def main() -> None:
    torch.set_num_threads(1)
    ratios = {}
    for family, make in FAMILIES.items():
        for dtype in ("float32", "bfloat16"):
            other = make().to(getattr(torch, dtype)).eval()
            with tempfile.TemporaryDirectory() as folder:
                other.save_pretrained(folder)
                model = ours(Path(folder), dtype)
            for length in LENGTHS:
                ratios[f"{family}_{dtype}_{length}"] = compare(model, other, length)
    result(**ratios, target=1.0, ratio=min(ratios.values()))


if __name__ == "__main__":
    main()
