"""The whole daemon on a hub folder of a family with experts, asked over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Client, ask_at_once, daemon
from tiny_models import bytes_as_tokens, greedy, tiny_model

pytestmark = pytest.mark.ranks

NAME = "qwen3-moe"
CLUSTER = {"ranks": 3, "cp_degrees": [1, 2], "composition": "1CP1/1CP2"}
PROMPT = "The god Vertumnus could change his form at will."
NEW_TOKENS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(NAME)
    tiny_model(NAME).save_pretrained(path)
    bytes_as_tokens().save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(scope="module")
def port(folder: Path) -> Iterator[int]:
    with daemon(cluster=CLUSTER, model={"path": str(folder)}) as running:
        yield running.port


def test_the_text_is_that_of_transformers_at_every_degree_and_after_a_hit(port: int) -> None:
    tokenizer = bytes_as_tokens()
    tokens = greedy(tiny_model(NAME), tokenizer.encode(PROMPT).ids, NEW_TOKENS)
    wanted = tokenizer.decode(tokens)
    answers = [answer for _ in range(2) for answer in ask_at_once(port, [PROMPT] * 4, NEW_TOKENS)]
    assert [answer.text for answer in answers] == [wanted] * 8
    assert {answer.facts["degree"] for answer in answers} == {1, 2}
    assert answers[-1].cached_tokens == (len(PROMPT) - 1) // 16 * 16


def test_the_model_is_named_after_its_folder(port: int, folder: Path) -> None:
    with Client(port) as client:
        [model] = client.get("/v1/models")["data"]
    assert (model["id"], model["max_model_len"]) == (folder.name, 512)
