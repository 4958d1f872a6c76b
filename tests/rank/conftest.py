"""Tiny random models as checkpoint folders, and transformers as the oracle of what they say."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from oracle import Oracle

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM


@pytest.fixture(scope="session")
def tiny_llama() -> LlamaForCausalLM:
    # Imported here, so that tests without a model do not wait for it.
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,  # large enough for answers that do not repeat themselves
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="session")
def checkpoint(tiny_llama: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-llama")
    tiny_llama.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The checkpoint folder of a model of ``tiny_models``."""

    @functools.cache
    def folder(name: str) -> Path:
        from tiny_models import tiny_model

        path = tmp_path_factory.mktemp(name)
        tiny_model(name).save_pretrained(path)
        return path

    return folder


@pytest.fixture(scope="session")
def long_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to serve: a tiny Llama for prompts of some thousand bytes, each byte a token."""
    from tiny_models import bytes_as_tokens, long_llama

    path = tmp_path_factory.mktemp("tiny-long")
    long_llama().save_pretrained(path)
    bytes_as_tokens().save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(scope="session")
def oracle(tiny_llama: LlamaForCausalLM) -> Oracle:
    """The greedy answer to a prompt, of a given length."""
    import torch
    from tiny_models import greedy

    torch.set_num_threads(1)  # tiny products: threads would only wait for each other
    return functools.partial(greedy, tiny_llama)
