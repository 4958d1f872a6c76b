"""A model as the metadata of its GGUF file describes it."""

from __future__ import annotations

from typing import Any

from vertumnusd.checkpoint.errors import need, need_one
from vertumnusd.checkpoint.rope import gguf_rope
from vertumnusd.gguf_file import GGUFFile
from vertumnusd.messages import Experts, ModelInfo

# The name in GGUF → the name on the hub, which is ours.
ARCHITECTURES = {"llama": "llama", "qwen3": "qwen3", "qwen3moe": "qwen3_moe"}

SOFTMAX = 1  # llama.cpp's number for the usual router


def gguf_info(file: GGUFFile, name: str, dtype: str) -> ModelInfo:
    """Raises CheckpointError for what would be computed wrongly, KeyError for what is missing."""
    file.check_types()
    architecture = need_one("architecture", file.metadata["general.architecture"], ARCHITECTURES)

    def get(key: str) -> Any:
        return file.metadata[f"{architecture}.{key}"]

    def get_or(key: str, default: Any) -> Any:
        return file.metadata.get(f"{architecture}.{key}", default)

    heads, context_tokens = get("attention.head_count"), get("context_length")
    head_dim = get_or("attention.key_length", get("embedding_length") // heads)
    need("rope.dimension_count", get_or("rope.dimension_count", head_dim), head_dim)
    need("attention.value_length", get_or("attention.value_length", head_dim), head_dim)
    need("attention.sliding_window", get_or("attention.sliding_window", 0), 0)
    theta, scaling = gguf_rope(file, architecture, context_tokens)
    sparse = architecture == "qwen3moe"
    if not sparse:
        need("expert_count", get_or("expert_count", 0), 0)
    return ModelInfo(
        name=name,
        architecture=ARCHITECTURES[architecture],
        layers=get("block_count"),
        hidden=get("embedding_length"),
        heads=heads,
        kv_heads=get_or("attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate=get("feed_forward_length"),
        vocab=file.tensors["token_embd.weight"].shape[0],
        context_tokens=context_tokens,
        norm_eps=get("attention.layer_norm_rms_epsilon"),
        rope_theta=theta,
        rope_scaling=scaling,
        tied_embeddings="output.weight" not in file.tensors,
        qk_norm=architecture != "llama",
        experts=_experts(get, get_or) if sparse else None,
        dtype=dtype,
    )


def _experts(get: Any, get_or: Any) -> Experts:
    """Every layer of a qwen3moe file has experts, and llama.cpp normalises their weights."""
    need("expert_gating_func", get_or("expert_gating_func", SOFTMAX), SOFTMAX)
    need("expert_weights_scale", get_or("expert_weights_scale", 1.0) or 1.0, 1.0)
    need("expert_weights_norm", get_or("expert_weights_norm", True), True)
    need("expert_shared_count", get_or("expert_shared_count", 0), 0)
    return Experts(
        count=get("expert_count"),
        per_token=get("expert_used_count"),
        intermediate=get("expert_feed_forward_length"),
        normalised=True,
        layers=tuple(range(get("block_count"))),
    )
