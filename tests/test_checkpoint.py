"""What is read from checkpoints, and what is refused by name before anything is loaded."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from vertumnusd.checkpoint import CheckpointError, eos_token_ids, model_info, resolve
from vertumnusd.messages import DividedRope, Experts, LinearRope, Llama3Rope, RopeScaling, YarnRope

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

MOE = {
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
LINEAR = {"rope_type": "linear", "factor": 2.0}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0
}  # fmt: skip


def folder(tmp_path: Path, **changes: Any) -> Path:
    config = {key: value for key, value in (CONFIG | changes).items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").touch()
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
        ({"model_type": "gpt2"}, "'gpt2'; supported are llama, qwen3, qwen3_moe"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "'dynamic'; supported are default, linear"),
        ({"rope_parameters": None, "rope_scaling": {"type": "longrope"}}, "'longrope'"),
        ({"rope_parameters": LINEAR | {"factor": None}}, "factor is None; a positive number"),
        ({"rope_parameters": LINEAR | {"factor": 0}}, "factor is 0; a positive number"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor is missing"),
        ({"rope_parameters": LINEAR | {"beta_slow": 1}}, "linear rope has beta_slow; supported"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "rope differs between"),
        (
            {"rope_parameters": LLAMA3 | {"low_freq_factor": 4.0}},
            "4.0 is not above low_freq_factor",
        ),
        ({"rope_parameters": LLAMA3, "original_max_position_embeddings": -1}, "context is -1"),
        ({"rope_parameters": {"rope_theta": 1}}, "rope_theta is 1.0; more than 1"),
        ({"rms_norm_eps": float("nan")}, "norm_eps is nan"),
        ({"use_sliding_window": True}, "use_sliding_window is True; only False"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "'sliding_attention'; only"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"vocab_size": -1}, "vocab is -1; a positive number"),
        ({"vocab_size": True}, r"makes no sense .*vocab"),
        ({"rms_norm_eps": "small"}, r"makes no sense .*norm_eps"),
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


def test_rope_scalings_become_what_they_come_to(tmp_path: Path) -> None:
    def scaling(**rope: Any) -> RopeScaling | None:
        path = folder(tmp_path, rope_parameters=None, rope_theta=1e6, rope_scaling=rope)
        info = model_info(path, "", "float32")
        assert info.rope_theta == 1e6
        return info.rope_scaling

    assert scaling(type="linear", factor=4) == LinearRope(4.0)
    assert scaling(**LLAMA3) == Llama3Rope(8.0, 1.0, 4.0, 512)
    assert scaling(rope_type="yarn", factor=4.0, original_max_position_embeddings=256) == YarnRope(
        4.0, pytest.approx(0.1 * math.log(4) + 1), 32.0, 1.0, 256, True
    )
    assert scaling(rope_type="yarn", factor=None, original_max_position_embeddings=64) == YarnRope(
        8.0, pytest.approx(0.1 * math.log(8) + 1), 32.0, 1.0, 64, True
    )


def test_yarn_promises_its_longer_context(tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 400}
    assert model_info(folder(tmp_path, rope_parameters=rope), "", "float32").context_tokens == 1600


def test_qwen3_and_its_experts(tmp_path: Path) -> None:
    dense = model_info(folder(tmp_path, model_type="qwen3", head_dim=24), "", "float32")
    assert (dense.qk_norm, dense.head_dim, dense.experts) == (True, 24, None)
    sparse = model_info(folder(tmp_path, **MOE), "", "float32")
    assert sparse.experts == Experts(8, 2, 32, True, (0, 1))
    every_other = model_info(folder(tmp_path, **MOE, decoder_sparse_step=2), "", "float32")
    assert every_other.experts == Experts(8, 2, 32, True, (1,))
    but_one = model_info(folder(tmp_path, **MOE, mlp_only_layers=[1]), "", "float32")
    assert but_one.experts == Experts(8, 2, 32, True, (0,))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_experts": None}, "num_local_experts is missing"),
        ({"num_experts_per_tok": 9}, "9 of 8 experts per token"),
        ({"num_experts_per_tok": 0}, "experts per token is 0; a positive number"),
        ({"decoder_sparse_step": -1}, "decoder_sparse_step is -1"),
        ({"norm_topk_prob": "yes"}, r"makes no sense .*normalised"),
    ],
)
def test_experts_that_make_no_sense_are_refused(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        model_info(folder(tmp_path, **MOE | changes), "", "float32")


GGUF: dict[str, Any] = {
    "block_count": 2,
    "context_length": 512,
    "embedding_length": 64,
    "feed_forward_length": 128,
    "attention.head_count": 4,
    "attention.layer_norm_rms_epsilon": 1e-5,
}


def gguf_file(tmp_path: Path, architecture: str, divisors: bool = False, **changes: Any) -> Path:
    """A file without layers; ``__`` in a key stands for the dot."""
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, architecture)
    values = GGUF | {key.replace("__", "."): value for key, value in changes.items()}
    for key, value in values.items():
        kind = gguf.GGUFValueType.get_type(value)
        writer.add_key_value(f"{architecture}.{key}", value, kind)
    writer.add_tensor("token_embd.weight", np.zeros((256, 64), np.float32))
    if divisors:
        writer.add_tensor("rope_freqs.weight", np.ones(divisors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_of_qwen3_with_experts(tmp_path: Path) -> None:
    experts = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 32}
    path = gguf_file(tmp_path, "qwen3moe", attention__key_length=24, **experts)
    info = model_info(path, "", "float32")
    assert (info.architecture, info.qk_norm, info.head_dim) == ("qwen3_moe", True, 24)
    assert info.experts == Experts(8, 2, 32, True, (0, 1))


@pytest.mark.parametrize(
    ("architecture", "changes", "named"),
    [
        ("qwen2", {}, "architecture 'qwen2'; supported are llama, qwen3, qwen3moe"),
        ("llama", {"expert_count": 8}, "expert_count is 8"),
        ("llama", {"rope__dimension_count": 8}, "rope.dimension_count is 8; only 16"),
        ("llama", {"attention__value_length": 8}, "attention.value_length is 8; only 16"),
        ("qwen3", {"attention__sliding_window": 64}, "attention.sliding_window is 64"),
        ("qwen3", {"rope__scaling__type": "longrope"}, "'longrope'; supported are none, linear"),
        ("qwen3", {"rope__scaling__type": "yarn"}, "factor is None; a positive number"),
        ("qwen3", {"rope__scaling__yarn_log_multiplier": 0.1}, "scaling.yarn_log_multiplier;"),
        ("qwen3", {"rope__scale_linear": 2.0}, "rope.scale_linear is 2.0"),
        ("qwen3moe", {"expert_weights_norm": False}, "expert_weights_norm is False"),
        ("qwen3moe", {"expert_count": 8}, "qwen3moe.expert_used_count is missing"),
        ("qwen3moe", {"expert_gating_func": 2}, "expert_gating_func is 2"),
        ("qwen3moe", {"expert_weights_scale": 2.5}, "expert_weights_scale is 2.5"),
        ("qwen3moe", {"expert_shared_count": 1}, "expert_shared_count is 1"),
    ],
)
def test_what_a_gguf_file_has_that_cannot_be_computed_is_refused_by_name(
    tmp_path: Path, architecture: str, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        model_info(gguf_file(tmp_path, architecture, **changes), "", "float32")


def test_two_scalings_at_once_are_refused(tmp_path: Path) -> None:
    scaling = {"rope__scaling__type": "linear", "rope__scaling__factor": 2.0}
    with pytest.raises(CheckpointError, match=r"beside rope_freqs.weight is 'linear'"):
        model_info(gguf_file(tmp_path, "llama", divisors=8, **scaling), "", "float32")
    info = model_info(gguf_file(tmp_path, "llama", divisors=8), "", "float32")
    assert info.rope_scaling == DividedRope((1.0,) * 8)


def test_divisors_of_another_head_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="must have 8 positive numbers"):
        model_info(gguf_file(tmp_path, "llama", divisors=4), "", "float32")


def test_a_factor_alone_is_linear_in_gguf(tmp_path: Path) -> None:
    info = model_info(gguf_file(tmp_path, "qwen3", rope__scaling__factor=4.0), "", "float32")
    assert info.rope_scaling == LinearRope(4.0)


def test_a_folder_without_safetensors_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path)
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"neither model.safetensors nor .*only safetensors"):
        model_info(path, "", "float32")
    (path / "model.safetensors.index.json").touch()
    assert model_info(path, "", "float32").layers == 2


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
