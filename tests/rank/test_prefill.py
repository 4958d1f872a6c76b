"""Context-parallel prefill on real processes, against transformers on the same checkpoint.

A prompt of L tokens, P of them cached, must give the same logits whatever the degree, wherever its
KV lies, and whether its prefix was computed now or taken from the cache.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from borders import BORDERS, error, prompt
from engine_ranks import EngineRanks, Shape, engine_ranks
from transformers import LlamaForCausalLM

from vertumnusd.rank.groups import CollectiveError
from vertumnusd.rank.prefill import PrefillError

pytestmark = pytest.mark.ranks

LOGITS_ERROR = 1e-5  # of the largest |logit|, in float32


@pytest.fixture(scope="module")
def two(checkpoint: Path) -> Iterator[EngineRanks]:
    with engine_ranks(checkpoint, Shape(ranks=2, cp_degrees=(1, 2), kv_blocks=256)) as engine:
        yield engine


@pytest.fixture(scope="module")
def four(checkpoint: Path) -> Iterator[EngineRanks]:
    """Homes of two ranks, so that two homes fit the worker of all four."""
    shape = Shape(ranks=4, cp_degrees=(2, 4), home_ranks=2, kv_blocks=256)
    with engine_ranks(checkpoint, shape) as engine:
        yield engine


@pytest.fixture(autouse=True)
def chains_in_one_run(request: pytest.FixtureRequest) -> None:
    for name in {"two", "four"} & set(request.fixturenames):
        request.getfixturevalue(name).id_step = 1


@torch.inference_mode()
def wanted(model: LlamaForCausalLM, tokens: list[int]) -> np.ndarray:
    return model(torch.tensor([tokens])).logits[0, -1].numpy()


@pytest.mark.parametrize(("length", "cached"), BORDERS)
@pytest.mark.parametrize("degree", [1, 2])
def test_logits_are_those_of_transformers(
    two: EngineRanks, tiny_llama: LlamaForCausalLM, degree: int, length: int, cached: int
) -> None:
    tokens = prompt(length)
    two.adopt(degree)
    _, prefix = two.prefill(tokens[:cached] or tokens)
    logits, _ = two.prefill(tokens, prefix, cached)
    assert error(logits, wanted(tiny_llama, tokens)) < LOGITS_ERROR


@pytest.mark.parametrize(("length", "cached"), BORDERS)
@pytest.mark.parametrize(("home_base", "home_ranks", "rotation"), [(0, 2, 0), (2, 2, 1), (0, 4, 3)])
def test_logits_are_right_on_four_ranks_and_either_home_or_both(
    four: EngineRanks, tiny_llama: LlamaForCausalLM,
    home_base: int, home_ranks: int, rotation: int, length: int, cached: int,
) -> None:  # fmt: skip
    tokens = prompt(length)
    four.adopt(4)
    where = {"home_base": home_base, "home_ranks": home_ranks, "rotation": rotation}
    _, prefix = four.prefill(tokens[:cached] or tokens, **where)
    logits, _ = four.prefill(tokens, prefix, cached)
    assert error(logits, wanted(tiny_llama, tokens)) < LOGITS_ERROR


@pytest.mark.parametrize(("first", "second"), [(2, 4), (4, 2)])
def test_a_prefix_serves_whatever_the_degree_that_computed_it(
    four: EngineRanks, tiny_llama: LlamaForCausalLM, first: int, second: int
) -> None:
    tokens = prompt(150)
    four.adopt(first)
    _, prefix = four.prefill(tokens[:96], home_base=0, rotation=1)
    four.adopt(second)
    logits, _ = four.prefill(tokens, prefix, 96)
    assert error(logits, wanted(tiny_llama, tokens)) < LOGITS_ERROR


@pytest.mark.parametrize("id_step", [1, 3])
def test_kv_is_the_same_at_every_degree(two: EngineRanks, id_step: int) -> None:
    """The chief property: KV depends on the tokens alone. The tail block is incomplete here."""
    two.id_step = id_step
    tokens, kv = prompt(203), {}
    for degree in (1, 2):
        two.adopt(degree)
        _, chain = two.prefill(tokens)
        kv[degree] = two.kv(chain)
    torch.testing.assert_close(kv[1], kv[2], rtol=0, atol=1e-5 * float(kv[1].abs().max()))


def test_kv_of_a_home_of_two_ranks_is_the_same_too(two: EngineRanks, four: EngineRanks) -> None:
    tokens = prompt(203)
    two.adopt(1)
    _, alone = two.prefill(tokens)
    four.adopt(4)
    _, shared = four.prefill(tokens, home_base=2, rotation=1)
    expected = two.kv(alone)
    torch.testing.assert_close(
        four.kv(shared), expected, rtol=0, atol=1e-5 * float(expected.abs().max())
    )


@pytest.mark.parametrize("degree", [1, 2])
def test_a_scattered_prefix_is_gathered(
    two: EngineRanks, tiny_llama: LlamaForCausalLM, degree: int
) -> None:
    two.adopt(degree)
    two.id_step = 3
    tokens = prompt(190)
    _, prefix = two.prefill(tokens[:160])
    logits, _ = two.prefill(tokens, prefix, 160)
    assert error(logits, wanted(tiny_llama, tokens)) < LOGITS_ERROR


@pytest.mark.parametrize("degree", [1, 2])
def test_steps_of_two_requests_may_alternate(
    two: EngineRanks, tiny_llama: LlamaForCausalLM, degree: int
) -> None:
    two.adopt(degree)
    prompts = [prompt(90, seed=1), prompt(41, seed=2)]
    requests = [two.begin(tokens)[0] for tokens in prompts]
    steps = [(0, 0, 1), (1, 0, 1), (0, 1, 3), (1, 1, 2), (1, 2, 4), (0, 3, 4)]
    results = {which: two.run(requests[which], *layers) for which, *layers in steps}
    for which, tokens in enumerate(prompts):
        assert error(results[which], wanted(tiny_llama, tokens)) < LOGITS_ERROR


def test_only_the_rank_with_the_last_token_has_logits(four: EngineRanks) -> None:
    four.adopt(4)
    request, _ = four.begin(prompt(50))
    results = four.call(four.worker, "run", four.step([request], 0, four.model.layers))
    assert [list(result.logits) for result in results] == [[request], [], [], []]


def test_a_rank_without_the_request_holds_nobody_up(
    two: EngineRanks, tiny_llama: LlamaForCausalLM
) -> None:
    two.adopt(2)
    request, _ = two.begin(prompt(40))
    two.call([1], "discard", request)
    with pytest.raises(PrefillError):
        two.run(request, 0, two.model.layers)
    assert two.call(two.worker, "knows", request) == [True, False]
    tokens = prompt(41)
    logits, _ = two.prefill(tokens)
    assert error(logits, wanted(tiny_llama, tokens)) < LOGITS_ERROR


def test_a_suffix_beyond_the_exchange_is_refused_by_all_ranks(two: EngineRanks) -> None:
    two.adopt(2)
    with pytest.raises(PrefillError, match="1 to 512"):
        two.begin(prompt(513))


def test_a_prompt_beyond_the_context_or_vocabulary_is_refused(two: EngineRanks) -> None:
    two.adopt(1)
    _, prefix = two.prefill(prompt(504))
    with pytest.raises(PrefillError, match="1 to 8 "):
        two.begin(prompt(513), prefix, 504)
    with pytest.raises(PrefillError, match="256"):
        two.begin([255, 256])


def test_an_unknown_geometry_is_refused(four: EngineRanks) -> None:
    with pytest.raises(KeyError):
        four.call([0], "adopt", 2, 2)


def test_a_dead_peer_raises_long_before_the_timeout(checkpoint: Path) -> None:
    # A reply that waited for the timeout would come after the harness has given up.
    shape = Shape(ranks=2, cp_degrees=(2,), collective_timeout_s=600.0)
    with engine_ranks(checkpoint, shape) as engine:
        engine.adopt(2)
        request, _ = engine.begin(prompt(40))
        os.kill(engine.processes[1].pid, signal.SIGKILL)
        with pytest.raises(CollectiveError):
            engine.call([0], "run", engine.step([request], 0, engine.model.layers))


def test_a_stopped_peer_raises_after_the_timeout(checkpoint: Path) -> None:
    shape = Shape(ranks=2, cp_degrees=(2,), collective_timeout_s=3.0)
    with engine_ranks(checkpoint, shape) as engine:
        engine.adopt(2)
        request, _ = engine.begin(prompt(40))
        os.kill(engine.processes[1].pid, signal.SIGSTOP)
        with pytest.raises(CollectiveError):
            engine.call([0], "run", engine.step([request], 0, engine.model.layers))
