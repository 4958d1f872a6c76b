"""Every family by itself, with the plainest attention: against transformers' forward."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_models import CONTEXT_TOKENS, MODELS, SCALED, VOCAB, rounded, tiny_model, write_gguf
from torch.nn import functional
from transformers import PreTrainedModel
from vertumnus_kernels import plain

from vertumnusd.checkpoint import model_info
from vertumnusd.messages import Experts
from vertumnusd.rank.load import load, tensor_specs
from vertumnusd.rank.models import Model, build
from vertumnusd.rank.models.qwen3_moe import add_experts, by_expert, choose
from vertumnusd.rank.models.rope import rotate
from vertumnusd.rank.weights import map_weights

pytestmark = pytest.mark.ranks

Folder = Callable[[str], Path]
DENSE = ("llama", "qwen3", "qwen3-tied")


def loaded(path: Path, dtype: str = "float32") -> Model:
    info = model_info(path, "", dtype)
    fd = os.memfd_create("weights")
    for _ in load(path, info, fd):
        pass
    model = build(info, map_weights(fd, tensor_specs(info)[0], dtype))
    os.close(fd)
    return model


@torch.inference_mode()
def forward(model: Model, ids_T: torch.Tensor) -> torch.Tensor:
    x_TE = model.embed(ids_T)
    for layer in range(model.info.layers):
        q_THD, k_TKD, v_TKD = model.qkv(layer, x_TE, torch.arange(len(ids_T)))
        attn_THD, _ = plain.attend(q_THD, k_TKD, v_TKD, True, model.info.head_dim**-0.5)
        x_TE = model.finish(layer, x_TE, attn_THD)
    assert x_TE.dtype == torch.float32
    return model.logits(x_TE)


@torch.inference_mode()
def errors(model: Model, oracle: PreTrainedModel, tokens: int) -> torch.Tensor:
    """Of each position, relative to the largest |logit| of all."""
    ids_T = torch.randint(0, VOCAB, (tokens,), generator=torch.Generator().manual_seed(tokens))
    wanted_TV = oracle(ids_T.unsqueeze(0)).logits[0]
    return (forward(model, ids_T) - wanted_TV).abs().amax(dim=-1) / wanted_TV.abs().max()


@pytest.mark.parametrize("tokens", [1, 9, 300])  # 300: more than one slab
@pytest.mark.parametrize("name", [*MODELS, *SCALED])
def test_all_logits_are_those_of_transformers(tiny_folder: Folder, name: str, tokens: int) -> None:
    assert errors(loaded(tiny_folder(name)), tiny_model(name), tokens).max() < 1e-5


@pytest.mark.parametrize("name", [*DENSE, "qwen3-moe", "linear", "llama3", "yarn"])
def test_a_gguf_file_says_the_same(tmp_path: Path, name: str) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_model(name))
    assert errors(loaded(path), tiny_model(name), CONTEXT_TOKENS).max() < 1e-5


@pytest.mark.parametrize("name", DENSE)
def test_bfloat16_stays_within_two_percent(tiny_folder: Folder, name: str) -> None:
    assert errors(loaded(tiny_folder(name), "bfloat16"), rounded(name), 300).max() < 2e-2


@pytest.mark.parametrize("name", ["qwen3-moe", "qwen3-moe-mixed"])
def test_bfloat16_with_experts_does_too_wherever_they_are_the_same(
    tiny_folder: Folder, name: str
) -> None:
    """Where two experts are chosen nearly alike, a rounded hidden state may choose the other."""
    found_T = errors(loaded(tiny_folder(name), "bfloat16"), rounded(name), 300)
    assert found_T.median() < 1e-2
    assert (found_T > 2e-2).float().mean() < 0.1


def test_bfloat16_keeps_hidden_states_and_gives_keys_in_bfloat16(tiny_folder: Folder) -> None:
    model = loaded(tiny_folder("qwen3"), "bfloat16")
    ids_T = torch.arange(20)
    assert forward(model, ids_T).dtype == torch.bfloat16
    _, k_TKD, v_TKD = model.qkv(0, model.embed(ids_T), ids_T)
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


@pytest.mark.parametrize("normalised", [True, False])
def test_shares_are_probabilities_that_add_up_to_one_if_normalised(normalised: bool) -> None:
    router_XE = torch.eye(4)
    x_TE = torch.tensor([[0.0, 2.0, 1.0, 0.0]])
    experts_TA, share_TA = choose(x_TE, router_XE, Experts(4, 2, 8, normalised, (0,)))
    odds = torch.tensor([2.0, 1.0]).exp()
    assert experts_TA.tolist() == [[1, 2]]
    total = odds.sum() if normalised else odds.sum() + 2
    torch.testing.assert_close(share_TA[0], odds / total)


def test_an_expert_of_many_tokens_adds_its_share_to_each() -> None:
    """More than a slab; the definition, with every expert computed for every token."""
    experts, noise = Experts(3, 2, 8, True, (0,)), torch.Generator().manual_seed(0)
    weights = {
        "router": torch.randn(3, 4, generator=noise),
        "experts_gate_up": torch.randn(3 * 16, 4, generator=noise),
        "experts_down": torch.randn(3 * 4, 8, generator=noise),
    }
    normed_TE, x_TE = torch.randn(2, 600, 4, generator=noise)
    share_TX = torch.softmax(normed_TE @ weights["router"].t(), dim=-1)
    share_TX = share_TX.masked_fill(share_TX == share_TX.amin(-1, keepdim=True), 0)
    share_TX /= share_TX.sum(-1, keepdim=True)
    wanted_TE = x_TE.clone()
    for expert in range(3):
        gate_TI, up_TI = (normed_TE @ weights["experts_gate_up"][16 * expert :][:16].t()).chunk(
            2, -1
        )
        output_TE = (functional.silu(gate_TI) * up_TI) @ weights["experts_down"][4 * expert :][
            :4
        ].t()
        wanted_TE += share_TX[:, expert : expert + 1] * output_TE
    add_experts(weights, experts, normed_TE, x_TE)
    torch.testing.assert_close(x_TE, wanted_TE)


def test_each_expert_meets_its_tokens_once() -> None:
    experts_TA = torch.tensor([[5, 0], [2, 5], [5, 9]])
    share_TA = torch.tensor([[0.5, 0.0], [0.2, 1.5], [2.5, 2.9]])
    found = {
        expert: list(zip(tokens_N.tolist(), share_N.tolist(), strict=True))
        for expert, tokens_N, share_N in by_expert(experts_TA, share_TA.double())
    }
    assert found == {
        0: [(0, 0.0)],
        2: [(1, pytest.approx(0.2))],
        5: [(0, 0.5), (1, 1.5), (2, 2.5)],
        9: [(2, pytest.approx(2.9))],
    }
