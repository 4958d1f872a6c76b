"""The model by itself, with the plainest attention: against transformers' forward."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM
from vertumnus_kernels import plain

from vertumnusd.checkpoint import model_info
from vertumnusd.rank.load import load, tensor_specs
from vertumnusd.rank.models.llama import Llama, rotate
from vertumnusd.rank.weights import map_weights

pytestmark = pytest.mark.ranks


def build(checkpoint: Path, dtype: str) -> Llama:
    info = model_info(checkpoint, "", dtype)
    fd = os.memfd_create("weights")
    for _ in load(checkpoint, info, fd):
        pass
    llama = Llama(info, map_weights(fd, tensor_specs(info)[0], dtype))
    os.close(fd)
    return llama


@torch.inference_mode()
def forward(llama: Llama, ids_T: torch.Tensor) -> torch.Tensor:
    x_TE = llama.embed(ids_T)
    for layer in range(llama.info.layers):
        q_THD, k_TKD, v_TKD = llama.qkv(layer, x_TE, torch.arange(len(ids_T)))
        attn_THD, _ = plain.attend(q_THD, k_TKD, v_TKD, True, llama.info.head_dim**-0.5)
        x_TE = llama.finish(layer, x_TE, attn_THD)
    assert x_TE.dtype == torch.float32
    return llama.logits(x_TE)


@pytest.mark.parametrize("tokens", [1, 9, 300])  # 300: more than one slab
def test_all_logits_are_those_of_transformers(
    checkpoint: Path, tiny_llama: LlamaForCausalLM, tokens: int
) -> None:
    ids_T = torch.randint(0, 256, (tokens,), generator=torch.Generator().manual_seed(tokens))
    with torch.inference_mode():
        wanted_TV = tiny_llama(ids_T.unsqueeze(0)).logits[0]
    found_TV = forward(build(checkpoint, "float32"), ids_T)
    bound = 1e-5 * float(wanted_TV.abs().max())
    torch.testing.assert_close(found_TV, wanted_TV, atol=bound, rtol=0)


def test_bfloat16_keeps_hidden_states_and_gives_keys_in_bfloat16(checkpoint: Path) -> None:
    llama = build(checkpoint, "bfloat16")
    ids_T = torch.arange(20)
    logits_TV = forward(llama, ids_T)
    assert logits_TV.dtype == torch.bfloat16
    _, k_TKD, v_TKD = llama.qkv(0, llama.embed(ids_T), ids_T)
    assert k_TKD.dtype == v_TKD.dtype == torch.bfloat16


def test_rotation_turns_each_pair_by_its_angle() -> None:
    x_11D = torch.tensor([[[1.0, 0.0, 0.0, 2.0]]])
    out_11D = torch.empty_like(x_11D)
    angle_11 = torch.tensor([[0.5, 0.25]])
    rotate(x_11D, angle_11.cos(), angle_11.sin(), out_11D)
    # Pairs are (0, 2) and (1, 3): (1, 0) turned by 0.5 and (0, 2) by 0.25.
    cos, sin = angle_11.cos()[0], angle_11.sin()[0]
    wanted_D = torch.stack([cos[0], -2 * sin[1], sin[0], 2 * cos[1]])
    torch.testing.assert_close(out_11D[0, 0], wanted_D)
