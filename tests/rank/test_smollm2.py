"""A real model, from GGUF: logits and greedy text as transformers gives them on the same file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_ranks import EngineRanks, Shape, engine_ranks
from gguf_oracle import gguf_oracle, gguf_tokenizer, last_logits, logits_error
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vertumnusd.checkpoint import resolve

pytestmark = pytest.mark.ranks

TEXT = """The god Vertumnus could change his form at will. Using this power he tricked Pomona into
talking to him by disguising himself as an old woman and gaining entry to her orchard."""


@pytest.fixture(scope="module")
def path() -> Path:
    return resolve("SmolLM2-135M-Instruct")


@pytest.fixture(scope="module")
def oracle(path: Path) -> PreTrainedModel:
    torch.set_num_threads(1)
    return gguf_oracle(path)


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[EngineRanks]:
    with engine_ranks(path, Shape(ranks=2, cp_degrees=(1, 2), kv_blocks=128)) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> PreTrainedTokenizerBase:
    return gguf_tokenizer(path)


@pytest.fixture(scope="module")
def tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return tokenizer(TEXT)["input_ids"]


@pytest.mark.parametrize("degree", [1, 2])
def test_logits_cold_and_after_a_hit(
    engine: EngineRanks, oracle: PreTrainedModel, tokens: list[int], degree: int
) -> None:
    engine.adopt(degree)
    wanted = last_logits(oracle, tokens)
    cold, chain = engine.prefill(tokens)
    hit, _ = engine.prefill(tokens, chain, 24)
    assert logits_error(cold, wanted) < 1e-5
    assert logits_error(hit, wanted) < 1e-5


def test_greedy_text(
    engine: EngineRanks, oracle: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    tokens: list[int] = tokenizer("The capital of France is")["input_ids"]
    engine.adopt(2)
    wanted, found = list(tokens), list(tokens)
    for _ in range(6):
        wanted.append(int(np.argmax(last_logits(oracle, wanted))))
        found.append(int(np.argmax(engine.prefill(found)[0])))
    assert found == wanted
    assert tokenizer.decode(found).startswith("The capital of France is Paris.")


def test_bfloat16_stays_within_two_percent(
    path: Path, oracle: PreTrainedModel, tokens: list[int]
) -> None:
    wanted = last_logits(oracle, tokens)
    shape = Shape(ranks=2, cp_degrees=(1, 2), kv_blocks=128, dtype="bfloat16")
    with engine_ranks(path, shape) as engine:
        for degree in (1, 2):
            engine.adopt(degree)
            cold, chain = engine.prefill(tokens)
            hit, _ = engine.prefill(tokens, chain, 24)
            assert logits_error(cold, wanted) < 2e-2
            assert logits_error(hit, wanted) < 2e-2
