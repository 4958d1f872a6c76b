"""Weights from hub folders and GGUF: the same tensors, bit for bit where the dtype allows it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from vertumnusd.checkpoint import CheckpointError, model_info
from vertumnusd.rank.load import ALIGNMENT, load, tensor_specs
from vertumnusd.rank.weights import map_weights

pytestmark = pytest.mark.ranks

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


def wanted(model: LlamaForCausalLM) -> Weights:
    state = {name.removeprefix("model."): tensor for name, tensor in model.state_dict().items()}
    weights = {"embed": state["embed_tokens.weight"], "norm": state["norm.weight"]}
    weights["head"] = state["lm_head.weight"]
    for layer in range(model.config.num_hidden_layers):
        at = {
            name.removeprefix(f"layers.{layer}.").removesuffix(".weight"): tensor
            for name, tensor in state.items()
            if name.startswith(f"layers.{layer}.")
        }
        qkv = [at[f"self_attn.{name}_proj"] for name in "qkv"]
        weights |= {
            f"layers.{layer}.attn_norm": at["input_layernorm"],
            f"layers.{layer}.qkv": torch.cat(qkv),
            f"layers.{layer}.o": at["self_attn.o_proj"],
            f"layers.{layer}.mlp_norm": at["post_attention_layernorm"],
            f"layers.{layer}.gate_up": torch.cat([at["mlp.gate_proj"], at["mlp.up_proj"]]),
            f"layers.{layer}.down": at["mlp.down_proj"],
        }
    return weights


def assert_equal(found: Weights, expected: Weights) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_a_folder_of_one_file(checkpoint: Path, tiny_llama: LlamaForCausalLM) -> None:
    assert_equal(loaded(checkpoint), wanted(tiny_llama))


def test_a_folder_of_shards(tiny_llama: LlamaForCausalLM, tmp_path: Path) -> None:
    tiny_llama.save_pretrained(tmp_path, max_shard_size="200KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_equal(loaded(tmp_path), wanted(tiny_llama))


def test_bfloat16_rounds_once(checkpoint: Path, tiny_llama: LlamaForCausalLM) -> None:
    expected = {name: tensor.bfloat16() for name, tensor in wanted(tiny_llama).items()}
    assert_equal(loaded(checkpoint, "bfloat16"), expected)


def test_a_gguf_file(tiny_llama: LlamaForCausalLM, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_llama)
    assert_equal(loaded(path), wanted(tiny_llama))


def write_gguf(path: Path, model: LlamaForCausalLM) -> None:
    """As llama.cpp's converter does it, the rows of q and k interleaved included."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        array = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:
            heads = config.num_key_value_heads if "k_proj" in name else config.num_attention_heads
            halves = array.reshape(heads, 2, -1, array.shape[1])
            array = halves.swapaxes(1, 2).reshape(array.shape)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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
    ],
)
def test_tensors_that_do_not_fit_are_named(
    checkpoint: Path, tmp_path: Path, change: Any, reason: str
) -> None:
    with pytest.raises(CheckpointError, match=reason):
        loaded(folder(checkpoint, tmp_path, change))


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
