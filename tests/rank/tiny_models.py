"""Tiny random models of every family and RoPE scaling, as transformers makes and computes them."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCAB = 256
CONTEXT_TOKENS = 512
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT_TOKENS,
    "initializer_range": 0.1,  # as large, for this width, as in models that were trained
    "tie_word_embeddings": False,
}
# Heads that together are wider than the hidden state, as in Qwen3.
QWEN3 = SIZES | {"head_dim": 24}
EXPERTS = {
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

MODELS: dict[str, tuple[type[PreTrainedModel], Any]] = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SIZES)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**QWEN3)),
    "qwen3-tied": (Qwen3ForCausalLM, Qwen3Config(**QWEN3 | {"tie_word_embeddings": True})),
    "qwen3-moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig(**QWEN3, **EXPERTS)),
    "qwen3-moe-mixed": (
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig(
            **QWEN3 | EXPERTS | {"norm_topk_prob": False},
            decoder_sparse_step=2,
            mlp_only_layers=[3],
        ),
    ),
}


def with_rope(family: str, **rope: Any) -> tuple[type[PreTrainedModel], Any]:
    model, config = MODELS[family]
    changed = type(config)(**config.to_dict() | {"rope_parameters": {"rope_theta": 1e4} | rope})
    return model, changed


SCALED = {
    "linear": with_rope("llama", rope_type="linear", factor=4.0),
    "llama3": with_rope(
        "llama", rope_type="llama3", original_max_position_embeddings=128, **LLAMA3
    ),
    "yarn": with_rope(
        "qwen3", rope_type="yarn", factor=4.0, original_max_position_embeddings=128
    ),
    "yarn-mscale": with_rope(
        "llama", rope_type="yarn", factor=8.0, original_max_position_embeddings=64,
        mscale=1.0, mscale_all_dim=0.5, beta_fast=16.0, beta_slow=2.0, truncate=False,
    ),
    "yarn-attention-factor": with_rope(
        "qwen3", rope_type="yarn", factor=2.0, original_max_position_embeddings=256,
        attention_factor=1.3,
    ),
}  # fmt: skip


@functools.cache
def tiny_model(name: str) -> PreTrainedModel:
    """One of MODELS or SCALED, in float32."""
    torch.set_num_threads(1)  # tiny products: threads would only wait for each other
    torch.manual_seed(0)
    model, config = (MODELS | SCALED)[name]
    return model(config).eval()


def long_llama() -> PreTrainedModel:
    """A tiny Llama for prompts of some thousand tokens."""
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES | {"max_position_embeddings": 4096, "initializer_range": 0.3})
    return LlamaForCausalLM(config).eval()


def bytes_as_tokens() -> Tokenizer:
    """A token for each byte and no merges: 256 of them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: id for id, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@torch.inference_mode()
def last_logits(model: PreTrainedModel, tokens: Sequence[int]) -> np.ndarray:
    return model(torch.tensor([tokens])).logits[0, -1].numpy()


def greedy(model: PreTrainedModel, tokens: Sequence[int], new_tokens: int) -> list[int]:
    """The answer that takes the likeliest token each time."""
    found = list(tokens)
    for _ in range(new_tokens):
        found.append(int(last_logits(model, found).argmax()))
    return found[len(tokens) :]


@functools.cache
def rounded(name: str) -> PreTrainedModel:
    """The model with its weights rounded to bfloat16, computing in float32: what is exact then."""
    model = copy.deepcopy(tiny_model(name))
    model.load_state_dict({key: w.bfloat16().float() for key, w in model.state_dict().items()})
    return model


def write_gguf(path: Path, model: PreTrainedModel) -> None:
    """As llama.cpp's converter does it: q and k of a Llama interleaved, experts in stacks."""
    config = model.config
    architecture = {"qwen3_moe": "qwen3moe"}.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    _write_rope(writer, model)
    if architecture == "qwen3moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    for name, array in _gguf_tensors(model, architecture):
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_rope(writer: gguf.GGUFWriter, model: PreTrainedModel) -> None:
    rope, head_dim = model.config.rope_parameters, model.config.head_dim
    match rope["rope_type"]:
        case "llama3":
            plain = rope["rope_theta"] ** -(torch.arange(0, head_dim, 2) / head_dim)
            divisors = plain / model.model.rotary_emb.inv_freq
            writer.add_tensor("rope_freqs.weight", divisors.numpy())
        case "linear" | "yarn" as kind:
            writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
            writer.add_rope_scaling_factor(rope["factor"])
            if kind == "yarn":
                writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def _gguf_tensors(model: PreTrainedModel, architecture: str) -> Iterator[tuple[str, np.ndarray]]:
    config = model.config
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        array, stem = tensor.numpy(), name.removesuffix(".weight")
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if name.endswith("experts.gate_up_proj"):
            for part, half in zip(("gate", "up"), np.split(array, 2, axis=1), strict=True):
                yield f"{names.get_name(name.replace('gate_up', part))}.weight", half.copy()
            continue
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_key_value_heads if "k_proj" in name else config.num_attention_heads
            halves = array.reshape(heads, 2, -1, array.shape[1])
            array = halves.swapaxes(1, 2).reshape(array.shape)
        yield f"{names.get_name(stem)}.weight", array
