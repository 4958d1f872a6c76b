"""Steps of packs, pauses and windows on real processes: every request's result is its own.

A prompt of L tokens, P of them cached, must give the logits of transformers whatever shares its
steps, wherever it is paused, however its rows are cut for want of memory, and whatever the degree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_ranks import EngineRanks, Shape, engine_ranks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from vertumnusd.rank.prefill import PlanMismatch

pytestmark = pytest.mark.ranks

LOGITS_ERROR = 1e-5  # of the largest |logit|, in float32
LAYERS = 4
SMALL_BYTES = 800_000  # of activations: with more than some 200 rows a step takes windows


@dataclass(frozen=True, slots=True)
class Prompt:
    """``home`` is (base, ranks, rotation)."""

    uncached: int
    cached: int
    home: tuple[int, int, int]

    def tokens(self) -> list[int]:
        noise = torch.Generator().manual_seed(self.uncached * 1000 + self.cached)
        return torch.randint(0, 256, (self.cached + self.uncached,), generator=noise).tolist()


HOMES = {1: [(0, 1, 0)], 2: [(0, 1, 0), (1, 1, 0), (0, 2, 1)], 4: [(3, 1, 0), (2, 2, 1), (0, 4, 3)]}


@st.composite
def prompts(draw: st.DrawFn, degree: int, most: int, longest: int) -> list[Prompt]:
    uncached = st.one_of(st.integers(1, 12), st.integers(1, 64), st.integers(100, longest))
    cached = st.sampled_from([0, 0, 8, 64, 160])
    found = st.builds(Prompt, uncached, cached, st.sampled_from(HOMES[degree]))
    return draw(st.lists(found, min_size=1, max_size=most))


@st.composite
def schedules(draw: st.DrawFn, requests: int) -> list[tuple[list[int], int, int]]:
    """Steps (who, first layer, last layer) that take everybody through all layers."""
    at = [0] * requests
    steps = []
    while min(at) < LAYERS:
        layer = draw(st.sampled_from(sorted({layer for layer in at if layer < LAYERS})))
        there = [who for who in range(requests) if at[who] == layer]
        pack = draw(st.lists(st.sampled_from(there), min_size=1, unique=True))
        last = draw(st.integers(layer + 1, LAYERS))
        steps.append((pack, layer, last))
        for who in pack:
            at[who] = last
    return steps


@pytest.fixture(scope="module")
def ample(checkpoint: Path) -> Iterator[EngineRanks]:
    shape = Shape(ranks=4, cp_degrees=(1, 2, 4), kv_blocks=256, debug_plans=True)
    with engine_ranks(checkpoint, shape) as engine:
        yield engine


@pytest.fixture(scope="module")
def short_of_memory(checkpoint: Path) -> Iterator[EngineRanks]:
    shape = Shape(ranks=2, cp_degrees=(1, 2), kv_blocks=256, activation_bytes=SMALL_BYTES)
    with engine_ranks(checkpoint, shape) as engine:
        yield engine


@torch.inference_mode()
def wanted(model: LlamaForCausalLM, tokens: list[int]) -> np.ndarray:
    return model(torch.tensor([tokens])).logits[0, -1].numpy()


def error(logits: np.ndarray, oracle: np.ndarray) -> float:
    return float(np.abs(logits - oracle).max() / np.abs(oracle).max())


def begin(engine: EngineRanks, prompt: Prompt) -> str:
    base, ranks, rotation = prompt.home
    where = {"home_base": base, "home_ranks": ranks, "rotation": rotation}
    tokens, prefix = prompt.tokens(), None
    if prompt.cached:
        _, prefix = engine.prefill(tokens[: prompt.cached], **where)
    return engine.begin(tokens, prefix, prompt.cached, **where)[0]


def check(
    engine: EngineRanks,
    model: LlamaForCausalLM,
    data: st.DataObject,
    degrees: list[int],
    most: int,
    longest: int,
) -> None:
    degree = data.draw(st.sampled_from(degrees))
    engine.adopt(degree)
    pack = data.draw(prompts(degree, most, longest))
    requests = [begin(engine, prompt) for prompt in pack]
    found: dict[str, np.ndarray] = {}
    for who, first, last in data.draw(schedules(len(pack))):
        logits, failures = engine.run_pack([requests[each] for each in who], first, last)
        assert not failures
        found |= logits
    for request, prompt in zip(requests, pack, strict=True):
        engine.call(engine.worker, "discard", request)
        assert error(found[request], wanted(model, prompt.tokens())) < LOGITS_ERROR


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_packs_and_pauses_change_nothing(
    ample: EngineRanks, tiny_llama: LlamaForCausalLM, data: st.DataObject
) -> None:
    check(ample, tiny_llama, data, [1, 2, 4], most=4, longest=120)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_windows_change_nothing(
    short_of_memory: EngineRanks, tiny_llama: LlamaForCausalLM, data: st.DataObject
) -> None:
    # Two of the longest together have rows that fit, in windows.
    check(short_of_memory, tiny_llama, data, [1, 2], most=2, longest=220)


def test_one_request_of_a_pack_fails_alone(
    ample: EngineRanks, tiny_llama: LlamaForCausalLM
) -> None:
    """Rank 1 has never heard of one of them: its part of the suffix is missing everywhere."""
    ample.adopt(2)
    pack = [Prompt(40, 8, (0, 1, 0)), Prompt(33, 0, (1, 1, 0)), Prompt(5, 0, (0, 2, 1))]
    requests = [begin(ample, prompt) for prompt in pack]
    ample.call([1], "discard", requests[1])
    logits, failures = ample.run_pack(requests, 0, LAYERS)
    assert list(failures) == [requests[1]]
    for index in (0, 2):
        oracle = wanted(tiny_llama, pack[index].tokens())
        assert error(logits[requests[index]], oracle) < LOGITS_ERROR


def test_a_pack_beyond_the_exchange_fails_and_the_next_step_is_right(
    ample: EngineRanks, tiny_llama: LlamaForCausalLM
) -> None:
    ample.adopt(2)
    requests = [begin(ample, Prompt(300, 0, (0, 1, 0))) for _ in range(2)]
    _, failures = ample.run_pack(requests, 0, LAYERS)
    assert all("600 tokens in a step; at most 512" in failures[request] for request in requests)
    prompt = Prompt(30, 8, (0, 1, 0))
    logits = ample.run(begin(ample, prompt), 0, LAYERS)
    assert error(logits, wanted(tiny_llama, prompt.tokens())) < LOGITS_ERROR


def test_a_step_that_never_fits_is_refused_before_it_begins(short_of_memory: EngineRanks) -> None:
    short_of_memory.adopt(1)
    request = begin(short_of_memory, Prompt(512, 0, (0, 1, 0)))
    _, failures = short_of_memory.run_pack([request], 0, LAYERS)
    assert f"{SMALL_BYTES} are allowed" in failures[request]


def test_ranks_with_different_plans_stop(checkpoint: Path) -> None:
    shape = Shape(ranks=2, cp_degrees=(2,), debug_plans=True)
    with engine_ranks(checkpoint, shape) as engine:
        engine.adopt(2)
        request = begin(engine, Prompt(40, 0, (0, 1, 0)))
        for rank, last in ((0, 3), (1, 4)):
            engine.send(rank, "run", engine.step([request], 0, last))
        for rank in range(2):
            assert isinstance(engine.reply(rank), PlanMismatch)
