"""Every family on real ranks, at every degree, cold and behind a prefix: as transformers has it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import mutants
import numpy as np
import pytest
import torch
from borders import BORDERS, error, prompt
from engine_ranks import EngineRanks, RankProcesses, Shape, rank_processes
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tiny_models import last_logits, rounded, tiny_model, write_gguf

pytestmark = pytest.mark.ranks

Folder = Callable[[str], Path]

FAMILIES = ("llama3", "qwen3-tied", "yarn", "qwen3-moe", "qwen3-moe-mixed")
DEGREES = (1, 2, 4)
BLOCK = 8
SHAPE = Shape(ranks=4, cp_degrees=DEGREES, block_tokens=BLOCK, kv_blocks=256)
ERROR = {"float32": 1e-5, "bfloat16": 2e-2}


@pytest.fixture(scope="module")
def processes() -> Iterator[RankProcesses]:
    with rank_processes(SHAPE.ranks) as started:
        yield started


@pytest.fixture(scope="module")
def engines(processes: RankProcesses, tiny_folder: Folder) -> dict[str, EngineRanks]:
    return {name: processes.open(tiny_folder(name), SHAPE) for name in FAMILIES}


@functools.cache
def wanted(name: str, length: int, seed: int) -> np.ndarray:
    return last_logits(tiny_model(name), prompt(length, seed))


def agree(logits: np.ndarray, oracle: np.ndarray) -> bool:
    """Whether they are equal to rounding, the next token included."""
    return error(logits, oracle) < ERROR["float32"] and logits.argmax() == oracle.argmax()


def cold_and_hit(
    engine: EngineRanks, tokens: list[int], cached: int, degree: int
) -> list[np.ndarray]:
    engine.adopt(degree)
    cold, chain = engine.prefill(tokens)
    return [cold, engine.prefill(tokens, chain, cached)[0]] if cached else [cold]


@pytest.mark.parametrize(("length", "cached"), BORDERS)
@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_transformers(
    engines: dict[str, EngineRanks], name: str, degree: int, length: int, cached: int
) -> None:
    found = cold_and_hit(engines[name], prompt(length), cached, degree)
    assert all(agree(logits, wanted(name, length, 0)) for logits in found)


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt whose prefix one worker has computed, and another one reuses."""

    name: str
    cached_blocks: int
    uncached: int
    first_degree: int
    degree: int
    home_ranks: int
    rotation: int
    id_step: int
    seed: int

    @property
    def cached(self) -> int:
        return self.cached_blocks * BLOCK


cases = st.builds(
    Case,
    name=st.sampled_from(FAMILIES),
    cached_blocks=st.integers(0, 30),
    uncached=st.one_of(st.integers(1, 20), st.integers(1, 200)),
    first_degree=st.sampled_from(DEGREES),
    degree=st.sampled_from(DEGREES),
    home_ranks=st.sampled_from(DEGREES),
    rotation=st.integers(0, 3),
    id_step=st.sampled_from([1, 3]),
    seed=st.integers(0, 99),
)


@settings(max_examples=150, deadline=None)
@given(case=cases)
def test_a_prefix_serves_whatever_computed_it_and_wherever_it_lies(
    engines: dict[str, EngineRanks], case: Case
) -> None:
    assume(case.home_ranks <= min(case.first_degree, case.degree))
    engine, length = engines[case.name], case.cached + case.uncached
    tokens = prompt(length, case.seed)
    engine.id_step = case.id_step
    engine.adopt(case.first_degree)
    where = {"home_ranks": case.home_ranks, "rotation": case.rotation % case.home_ranks}
    _, prefix = engine.prefill(tokens[: case.cached] or tokens, **where)
    engine.adopt(case.degree)
    logits, chain = engine.prefill(tokens, prefix, case.cached)
    assert agree(logits, wanted(case.name, length, case.seed))
    engine.adopt(1)
    _, alone = engine.prefill(tokens)
    bound = ERROR["float32"] * float(engine.kv(alone).abs().max())
    torch.testing.assert_close(engine.kv(chain), engine.kv(alone), rtol=0, atol=bound)


@pytest.mark.parametrize("degree", DEGREES)
def test_a_gguf_file_with_experts(processes: RankProcesses, tmp_path: Path, degree: int) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_model("qwen3-moe"))
    engine = processes.open(path, SHAPE)
    for logits in cold_and_hit(engine, prompt(90), 40, degree):
        assert agree(logits, wanted("qwen3-moe", 90, 0))


@pytest.mark.parametrize(("name", "astray"), [("llama3", 0), ("qwen3-tied", 0), ("qwen3-moe", 2)])
def test_bfloat16_stays_within_two_percent(
    processes: RankProcesses, tiny_folder: Folder, name: str, astray: int
) -> None:
    """But for up to ``astray`` prompts, where rounding made a token choose another expert."""
    engine = processes.open(tiny_folder(name), replace(SHAPE, dtype="bfloat16"))
    errors = []
    for seed in range(8):
        tokens = prompt(90, seed)
        oracle = last_logits(rounded(name), tokens)
        second, first = np.sort(oracle)[-2:] / np.abs(oracle).max()
        for degree in DEGREES:
            for logits in cold_and_hit(engine, tokens, 40, degree):
                errors.append((seed, error(logits, oracle)))
                assert first - second < 2 * ERROR["bfloat16"] or logits.argmax() == oracle.argmax()
    assert len({seed for seed, found in errors if found > ERROR["bfloat16"]}) <= astray


def check_borders(engine: EngineRanks, name: str) -> None:
    for degree in (1, 2):
        for border in BORDERS:
            length, cached = border.values
            for logits in cold_and_hit(engine, prompt(length), cached, degree):
                assert agree(logits, wanted(name, length, 0))


@pytest.mark.parametrize("mutant", mutants.MUTANTS)
def test_the_borders_notice(engines: dict[str, EngineRanks], mutant: str) -> None:
    engine = engines["qwen3-tied"]
    ranks = range(SHAPE.ranks)
    engine.call(ranks, mutants.install, mutant)
    try:
        with pytest.raises(AssertionError):
            check_borders(engine, "qwen3-tied")
    finally:
        engine.call(ranks, mutants.undo)
    check_borders(engine, "qwen3-tied")
