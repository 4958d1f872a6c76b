"""A model as its config.json on the hub describes it."""

from __future__ import annotations

from typing import Any

from vertumnusd.checkpoint.errors import CheckpointError, need, need_one
from vertumnusd.checkpoint.rope import hub_rope
from vertumnusd.messages import Experts, ModelInfo, RopeScaling, YarnRope

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"  # of weights in several files

ARCHITECTURES = ("llama", "qwen3", "qwen3_moe")


def hub_info(config: dict[str, Any], name: str, dtype: str) -> ModelInfo:
    """Raises CheckpointError for what would be computed wrongly, KeyError for what is missing."""
    architecture = need_one("architecture", config["model_type"], ARCHITECTURES)
    _refuse_unknown_forms(config)
    heads, layers = config["num_attention_heads"], config["num_hidden_layers"]
    theta, scaling = hub_rope(config)
    return ModelInfo(
        name=name,
        architecture=architecture,
        layers=layers,
        hidden=config["hidden_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        intermediate=config["intermediate_size"],
        vocab=config["vocab_size"],
        context_tokens=_context_tokens(config, scaling),
        norm_eps=config["rms_norm_eps"],
        rope_theta=theta,
        rope_scaling=scaling,
        tied_embeddings=config.get("tie_word_embeddings", False),
        qk_norm=architecture != "llama",
        experts=_experts(config, layers) if architecture == "qwen3_moe" else None,
        dtype=dtype,
    )


def _refuse_unknown_forms(config: dict[str, Any]) -> None:
    need("hidden_act", config.get("hidden_act", "silu"), "silu")
    need("attention_bias", config.get("attention_bias") or False, False)
    need("mlp_bias", config.get("mlp_bias") or False, False)
    need("quantization_config", config.get("quantization_config"), None)
    need("use_sliding_window", config.get("use_sliding_window") or False, False)
    for kind in config.get("layer_types") or ():
        need("a layer type", kind, "full_attention")


def _context_tokens(config: dict[str, Any], scaling: RopeScaling | None) -> int:
    """What the config promises; yarn is also written into configs that keep the shorter number."""
    context: int = config["max_position_embeddings"]
    if isinstance(scaling, YarnRope):
        return max(context, int(scaling.original_context_tokens * scaling.factor))
    return context


def _experts(config: dict[str, Any], layers: int) -> Experts:
    # transformers 5 writes num_local_experts, the hub has num_experts.
    count = config.get("num_experts") or config["num_local_experts"]
    every = config.get("decoder_sparse_step") or 1
    dense = config.get("mlp_only_layers") or ()
    if not isinstance(every, int) or every < 1:
        raise CheckpointError(f"decoder_sparse_step is {every!r}; a positive number is needed")
    return Experts(
        count=count,
        per_token=config["num_experts_per_tok"],
        intermediate=config["moe_intermediate_size"],
        normalised=config.get("norm_topk_prob") or False,
        layers=tuple(
            layer for layer in range(layers) if layer not in dense and (layer + 1) % every == 0
        ),
    )
