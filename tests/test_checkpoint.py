"""What is read from checkpoints, and what is refused by name before anything is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vertumnusd.checkpoint import CheckpointError, eos_token_ids, model_info, resolve

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
    "eos_token_id": 2,
}


def folder(tmp_path: Path, **changes: Any) -> Path:
    config = {key: value for key, value in (CONFIG | changes).items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_the_packaged_model() -> None:
    path = resolve("SmolLM2-135M-Instruct")
    info = model_info(path, "smol", "bfloat16")
    assert (info.name, info.architecture, info.dtype) == ("smol", "llama", "bfloat16")
    assert (info.layers, info.hidden, info.intermediate, info.vocab) == (30, 576, 1536, 49152)
    assert (info.heads, info.kv_heads, info.head_dim) == (9, 3, 64)
    assert (info.context_tokens, info.rope_theta, info.tied_embeddings) == (8192, 1e5, True)
    assert info.norm_eps == pytest.approx(1e-5)
    assert eos_token_ids(path) == (2,)


def test_a_hub_folder(tmp_path: Path) -> None:
    info = model_info(folder(tmp_path), "", "float32")
    assert (info.name, info.architecture) == (tmp_path.name, "llama")
    assert (info.layers, info.hidden, info.intermediate, info.vocab) == (2, 64, 128, 256)
    assert (info.heads, info.kv_heads, info.head_dim) == (4, 2, 16)
    assert (info.context_tokens, info.rope_theta, info.tied_embeddings) == (512, 5e5, False)


def test_rope_theta_alone_as_older_configs_have_it(tmp_path: Path) -> None:
    path = folder(tmp_path, rope_parameters=None, rope_theta=1234.0, rope_scaling=None)
    assert model_info(path, "", "float32").rope_theta == 1234.0


def test_eos_tokens_of_the_generation_config_come_first(tmp_path: Path) -> None:
    assert eos_token_ids(folder(tmp_path)) == (2,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert eos_token_ids(tmp_path) == (7, 9)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "gpt2"}, "'gpt2'; supported are llama"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "'llama3'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "'linear'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"vocab_size": -1}, "vocab is -1; a positive number"),
        ({"num_attention_heads": 0}, "makes no sense"),
        ({"num_attention_heads": "4"}, "makes no sense"),
        ({"num_key_value_heads": 3}, "4 heads of 16 over 3 KV heads"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        model_info(folder(tmp_path, **changes), "", "float32")


def test_an_unknown_dtype_is_refused_with_those_allowed(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'int4'; allowed are float32, bfloat16"):
        model_info(folder(tmp_path), "", "int4")


@pytest.mark.parametrize("content", ["{", "[]", '"text"'])
def test_a_broken_config_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json: not"):
        model_info(tmp_path, "", "float32")


def test_resolve_takes_paths_and_names_what_it_knows(tmp_path: Path) -> None:
    assert resolve(str(folder(tmp_path))) == tmp_path
    with pytest.raises(CheckpointError, match=r"'no-such' is neither .* SmolLM2-135M-Instruct"):
        resolve("no-such")


def test_reading_a_checkpoint_needs_no_torch() -> None:
    """The daemon validates with this module, and loads no torch."""
    code = "import sys, vertumnusd.checkpoint; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
