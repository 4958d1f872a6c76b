"""Weights from hub folders and GGUF: the same tensors, bit for bit where the dtype allows it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import MODELS, tiny_model, write_gguf
from transformers import LlamaForCausalLM, PreTrainedModel

from vertumnusd.checkpoint import CheckpointError, model_info
from vertumnusd.rank.load import ALIGNMENT, load, tensor_specs
from vertumnusd.rank.weights import map_weights

pytestmark = pytest.mark.ranks

Folder = Callable[[str], Path]
Weights = dict[str, torch.Tensor]


def loaded(path: Path, dtype: str = "float32") -> Weights:
    info = model_info(path, "", dtype)
    fd = os.memfd_create("weights")
    try:
        progress = list(load(path, info, fd))
        specs, size_bytes = tensor_specs(info)
        assert progress == sorted(progress)
        assert size_bytes - ALIGNMENT < progress[-1] <= size_bytes
        return {name: tensor.clone() for name, tensor in map_weights(fd, specs, dtype).items()}
    finally:
        os.close(fd)


def wanted(model: PreTrainedModel) -> Weights:
    state = {name.removeprefix("model."): tensor for name, tensor in model.state_dict().items()}
    weights = {"embed": state["embed_tokens.weight"], "norm": state["norm.weight"]}
    if not model.config.tie_word_embeddings:
        weights["head"] = state["lm_head.weight"]
    for layer in range(model.config.num_hidden_layers):
        at = {
            name.removeprefix(f"layers.{layer}.").removesuffix(".weight"): tensor
            for name, tensor in state.items()
            if name.startswith(f"layers.{layer}.")
        }
        weights |= {f"layers.{layer}.{name}": tensor for name, tensor in fused(at).items()}
    return weights


def fused(at: Weights) -> Weights:
    """The tensors of one layer as a rank computes with them."""
    found = {
        "attn_norm": at["input_layernorm"],
        "qkv": torch.cat([at[f"self_attn.{name}_proj"] for name in "qkv"]),
        "o": at["self_attn.o_proj"],
        "mlp_norm": at["post_attention_layernorm"],
    }
    found |= {
        name: at[f"self_attn.{name}"] for name in ("q_norm", "k_norm") if f"self_attn.{name}" in at
    }
    if "mlp.gate" in at:
        return found | {
            "router": at["mlp.gate"],
            "experts_gate_up": at["mlp.experts.gate_up_proj"].flatten(0, 1),
            "experts_down": at["mlp.experts.down_proj"].flatten(0, 1),
        }
    return found | {
        "gate_up": torch.cat([at["mlp.gate_proj"], at["mlp.up_proj"]]),
        "down": at["mlp.down_proj"],
    }


def assert_equal(found: Weights, expected: Weights) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_of_one_file(tiny_folder: Folder, name: str) -> None:
    assert_equal(loaded(tiny_folder(name)), wanted(tiny_model(name)))


@pytest.mark.parametrize("name", ["llama", "qwen3-moe"])
def test_a_folder_of_shards(tmp_path: Path, name: str) -> None:
    tiny_model(name).save_pretrained(tmp_path, max_shard_size="200KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_equal(loaded(tmp_path), wanted(tiny_model(name)))


def test_bfloat16_rounds_once(checkpoint: Path, tiny_llama: LlamaForCausalLM) -> None:
    expected = {name: tensor.bfloat16() for name, tensor in wanted(tiny_llama).items()}
    assert_equal(loaded(checkpoint, "bfloat16"), expected)


@pytest.mark.parametrize("name", ["llama", "qwen3", "qwen3-tied", "qwen3-moe"])
def test_a_gguf_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_model(name))
    assert_equal(loaded(path), wanted(tiny_model(name)))


def folder(checkpoint: Path, tmp_path: Path, change: Any) -> Path:
    """The checkpoint with its tensors changed by ``change``."""
    (tmp_path / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    tensors = load_file(checkpoint / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda tensors: tensors.pop("model.norm.weight"), "model.norm.weight is missing"),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.ones(3)}),
            r"model.norm.weight has shape \(3,\); \(64,\) is needed",
        ),
        (
            lambda tensors: tensors.update(
                {"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}
            ),
            "q_proj.bias is not of a plain llama model",
        ),
        (
            lambda tensors: tensors.update(
                {"model.norm.weight": tensors["model.norm.weight"].to(torch.float8_e4m3fn)}
            ),
            "dtype of tensor model.norm.weight 'F8_E4M3'; supported are F32, BF16, F16",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    checkpoint: Path, tmp_path: Path, change: Any, reason: str
) -> None:
    with pytest.raises(CheckpointError, match=reason):
        loaded(folder(checkpoint, tmp_path, change))


def test_experts_that_do_not_fit_are_named(tiny_folder: Folder, tmp_path: Path) -> None:
    def change(tensors: Weights) -> None:
        del tensors["model.layers.2.mlp.experts.7.up_proj.weight"]

    with pytest.raises(CheckpointError, match=r"layers.2.mlp.experts.7.up_proj.weight is missing"):
        loaded(folder(tiny_folder("qwen3-moe"), tmp_path, change))


def test_tensors_without_a_meaning_are_let_pass(
    checkpoint: Path, tiny_llama: LlamaForCausalLM, tmp_path: Path
) -> None:
    def change(tensors: Weights) -> None:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)

    path = folder(checkpoint, tmp_path, change)
    config = json.loads((path / "config.json").read_bytes()) | {"tie_word_embeddings": True}
    (path / "config.json").write_text(json.dumps(config))
    expected = wanted(tiny_llama)
    del expected["head"]
    assert_equal(loaded(path), expected)


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ('{"weight_map": {"a": "../elsewhere.safetensors"}}', "no file of the folder"),
        ('{"weight_map": 3}', "no weight_map"),
        ("{", "no weight_map"),
        ('{"weight_map": {"a": "none.safetensors"}}', "cannot be read"),
    ],
)
def test_an_index_may_only_name_files_beside_it(
    checkpoint: Path, tmp_path: Path, index: str, reason: str
) -> None:
    (tmp_path / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=reason):
        loaded(tmp_path)


def test_a_broken_file_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x04 not safetensors")
    with pytest.raises(CheckpointError, match="cannot be read"):
        loaded(tmp_path)


def test_weights_of_a_rank_are_its_own_to_spoil(checkpoint: Path) -> None:
    info = model_info(checkpoint, "", "float32")
    fd = os.memfd_create("weights")
    for _ in load(checkpoint, info, fd):
        pass
    specs, _ = tensor_specs(info)
    first, second = map_weights(fd, specs, "float32"), map_weights(fd, specs, "float32")
    os.close(fd)
    first["norm"].zero_()
    assert second["norm"].any()
