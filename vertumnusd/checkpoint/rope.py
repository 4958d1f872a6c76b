"""The RoPE scaling that a checkpoint asks for, from the keys of hub configs and of GGUF files.

Only what depends on positions alone can be cached across requests: scalings that change with the
length of the prompt (dynamic, longrope) would make the same block's keys differ from one request
to the next. They are refused, as is a key whose effect is not computed here.
"""

from __future__ import annotations

import math
from typing import Any

from vertumnusd.checkpoint.errors import CheckpointError, need, need_one
from vertumnusd.gguf_file import GGUFFile
from vertumnusd.messages import DividedRope, LinearRope, Llama3Rope, RopeScaling, YarnRope

THETA = 10000.0

# What each type is made of, besides its name and theta.
_HUB_KEYS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": (
        *("factor", "attention_factor", "mscale", "mscale_all_dim"),
        *("beta_fast", "beta_slow", "truncate"),
    ),
}
_EVERYWHERE = {
    *("type", "rope_type", "rope_theta", "original_max_position_embeddings"),
    "partial_rotary_factor",
}
_GGUF_TYPES = ("none", "linear", "yarn")
_GGUF_KEYS = {
    *("type", "factor", "original_context_length", "finetuned"),
    *("yarn_beta_fast", "yarn_beta_slow"),
}


def hub_rope(config: dict[str, Any]) -> tuple[float, RopeScaling | None]:
    """Theta and scaling of a config.json.

    transformers 5 writes rope_parameters; before, theta stood alone beside rope_scaling.
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta") or config.get("rope_theta") or THETA)
    kind = need_one("rope type", rope.get("rope_type", rope.get("type", "default")), _HUB_KEYS)
    if any(isinstance(value, dict) for value in rope.values()):
        raise CheckpointError(f"rope differs between {', '.join(rope)}; it must be one for all")
    for place in (rope, config):
        need("partial_rotary_factor", place.get("partial_rotary_factor") or 1.0, 1.0)
    if kind == "default":
        return theta, None
    strange = rope.keys() - _EVERYWHERE - set(_HUB_KEYS[kind])
    if strange:
        allowed = ", ".join(_HUB_KEYS[kind])
        raise CheckpointError(f"{kind} rope has {min(strange)}; supported are {allowed}")
    return theta, _hub_scaling(kind, rope, config)


def _hub_scaling(kind: str, rope: dict[str, Any], config: dict[str, Any]) -> RopeScaling:
    context = config["max_position_embeddings"]
    said = (place.get("original_max_position_embeddings") for place in (config, rope))
    original = next(filter(None, said), context)
    if kind == "linear":
        return LinearRope(_number("factor", rope["factor"]))
    if kind == "llama3":
        factor, low, high = (_number(key, rope[key]) for key in _HUB_KEYS[kind])
        return Llama3Rope(factor, low, high, original)
    factor = _number("factor", rope.get("factor") or context / original)
    attention_factor = rope.get("attention_factor") or _attention_factor(
        factor, rope.get("mscale"), rope.get("mscale_all_dim")
    )
    return YarnRope(
        factor,
        _number("attention_factor", attention_factor),
        _number("beta_fast", rope.get("beta_fast") or 32),
        _number("beta_slow", rope.get("beta_slow") or 1),
        original,
        rope.get("truncate", True),
    )


def _attention_factor(factor: float, mscale: float | None, mscale_all_dim: float | None) -> float:
    """How much longer queries and keys become (each; hence the square in the scores)."""

    def length(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if mscale and mscale_all_dim:
        return length(mscale) / length(mscale_all_dim)
    return length(1.0)


def gguf_rope(file: GGUFFile, prefix: str, context_tokens: int) -> tuple[float, RopeScaling | None]:
    """Theta and scaling of a GGUF file; ``prefix`` is its architecture's name."""

    def get(key: str, default: Any) -> Any:
        return file.metadata.get(f"{prefix}.rope.{key}", default)

    theta = float(get("freq_base", THETA))
    factor = get("scaling.factor", None)
    # As llama.cpp reads it: a factor alone is linear.
    kind = get("scaling.type", "none" if factor is None else "linear")
    need_one("rope.scaling.type", kind, _GGUF_TYPES)
    need("rope.scale_linear", get("scale_linear", 1.0), 1.0)
    scaling = f"{prefix}.rope.scaling."
    keys = {key.removeprefix(scaling) for key in file.metadata if key.startswith(scaling)}
    if keys - _GGUF_KEYS:
        allowed = ", ".join(sorted(_GGUF_KEYS))
        raise CheckpointError(f"rope.scaling.{min(keys - _GGUF_KEYS)}; supported are {allowed}")
    if "rope_freqs.weight" in file.tensors:
        need("rope.scaling.type beside rope_freqs.weight", kind, "none")
        pairs = file.tensors["rope_freqs.weight"].shape[0]
        return theta, DividedRope(tuple(file.rows("rope_freqs.weight", 0, pairs).tolist()))
    if kind == "none":
        return theta, None
    factor = _number("factor", factor)
    if kind == "linear":
        return theta, LinearRope(factor)
    return theta, YarnRope(
        factor,
        _attention_factor(factor, None, None),
        get("scaling.yarn_beta_fast", 32.0),
        get("scaling.yarn_beta_slow", 1.0),
        get("scaling.original_context_length", context_tokens),
        True,
    )


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise CheckpointError(f"rope {key} is {value!r}; a positive number is needed")
    return float(value)
