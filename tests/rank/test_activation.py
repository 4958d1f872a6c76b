"""The predicted memory of a step against what torch really allocates."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from vertumnusd.layout import kv_pool_bytes
from vertumnusd.messages import Begin, Experts, ModelInfo, RankStart, Sampling, Step, StepPart
from vertumnusd.node.memory import weights_bytes
from vertumnusd.rank.activation import SMALLEST_WINDOW, StepLoad, peak_bytes, window_rows
from vertumnusd.rank.kv_pool import KVPool
from vertumnusd.rank.load import tensor_specs
from vertumnusd.rank.models import build
from vertumnusd.rank.prefill import Prefill
from vertumnusd.rank.shared_exchange import SharedExchange
from vertumnusd.rank.weights import DTYPES

pytestmark = pytest.mark.ranks

BLOCK, CONTEXT = 16, 4096


def model(
    dtype: str = "float32", intermediate: int = 1024, experts: Experts | None = None
) -> ModelInfo:
    family = "qwen3_moe" if experts else "llama"
    return ModelInfo(
        name="m", architecture=family, layers=3, hidden=512, heads=8, kv_heads=2, head_dim=64,
        intermediate=intermediate, vocab=128, context_tokens=CONTEXT, norm_eps=1e-5,
        rope_theta=1e4, tied_embeddings=True, dtype=dtype,
        experts=experts, qk_norm=experts is not None,
    )  # fmt: skip


@contextmanager
def prefill_alone(info: ModelInfo, activation_bytes: int = 0) -> Iterator[Prefill]:
    """A rank of degree 1 in this process, with random weights."""
    noise = torch.Generator().manual_seed(0)
    weights = {
        spec.name: torch.randn(spec.shape, generator=noise).mul_(0.02).to(DTYPES[info.dtype])
        for spec in tensor_specs(info)[0]
    }
    blocks = CONTEXT // BLOCK
    fd = os.memfd_create("pool")
    os.ftruncate(fd, kv_pool_bytes(info, blocks, BLOCK))
    start = RankStart(
        0, "prefill", 1, "g", info, [], -1, "", 0, (1,), BLOCK, blocks, (fd,), (), CONTEXT, -1, 0,
        -1, 1.0, activation_bytes=activation_bytes,
    )  # fmt: skip
    pool = KVPool(fd, blocks, info, BLOCK, own=True)
    exchange = SharedExchange((), {0: pool}, info, CONTEXT, barrier=None)  # type: ignore[arg-type]
    prefill = Prefill(
        start,
        build(info, weights),
        pool,
        exchange,
        None,
        torch.device("cpu"),  # type: ignore[arg-type]
    )
    prefill.adopt(1, 0)
    try:
        yield prefill
    finally:
        os.close(fd)


def begin(prefill: Prefill, request: str, uncached: int, cached: int, scattered: bool) -> StepPart:
    blocks = -(-(cached + uncached) // BLOCK)
    ids = list(range(0, blocks, 2)) + list(range(1, blocks, 2)) if scattered else range(blocks)
    tokens = array("I", [7] * uncached).tobytes()
    writable = {block: ids[block] for block in range(cached // BLOCK, blocks)}
    prefill.begin(
        Begin(0, 0, request, tokens, cached, array("I", ids).tobytes(), 0, 1, 0, Sampling(), 0),
        writable,
    )
    return StepPart(request, cached, uncached)


def measured_bytes(prefill: Prefill, step: Step) -> int:
    """The most that was allocated at once while the step ran."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        assert not prefill.run(step).failures
    events = watched.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    live = most = 0
    for _, change in changes:
        live += change
        most = max(most, live)
    return most


CASES = [
    pytest.param(16, 0, False, id="few-rows"),
    pytest.param(64, 3072, False, id="long-prefix"),
    pytest.param(2048, 0, False, id="cold"),
    pytest.param(1024, 2048, True, id="gathered-prefix"),
]


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """What is chosen and allocated once, at the first use, is not a step's."""
    with prefill_alone(model()) as prefill:
        prefill.run(Step(0, 0, 1, 0, 3, (begin(prefill, "a", 64, 0, False),)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("uncached", "cached", "scattered"), CASES)
def test_a_step_takes_what_was_predicted(
    uncached: int, cached: int, scattered: bool, dtype: str
) -> None:
    info = model(dtype)
    with prefill_alone(info) as prefill:
        part = begin(prefill, "a", uncached, cached, scattered)
        measured = measured_bytes(prefill, Step(0, 0, 1, 0, 3, (part,)))
    load = StepLoad(uncached, 0, max(uncached, cached), cached if scattered else 0)
    assert measured <= peak_bytes(info, load, uncached) <= 1.5 * measured


@pytest.mark.parametrize("intermediate", [1024, 4096])
@pytest.mark.parametrize(("uncached", "cached", "scattered"), CASES[2:])
def test_a_step_keeps_to_its_budget(
    uncached: int, cached: int, scattered: bool, intermediate: int
) -> None:
    info = model(intermediate=intermediate)
    load = StepLoad(uncached, 0, max(uncached, cached), cached if scattered else 0)
    budget_bytes = peak_bytes(info, load, uncached // 4)
    assert budget_bytes < peak_bytes(info, load, uncached)
    with prefill_alone(info, budget_bytes) as prefill:
        part = begin(prefill, "a", uncached, cached, scattered)
        assert measured_bytes(prefill, Step(0, 0, 1, 0, 3, (part,))) <= budget_bytes


@pytest.mark.parametrize("window_share", [1, 4])
def test_experts_take_no_more_than_predicted(window_share: int) -> None:
    """They are predicted for the worst case, that all rows choose the same."""
    info = model(experts=Experts(8, 8, 1024, True, (0, 1, 2)))  # every expert has every row
    load = StepLoad(1024, 0, 1024, 0)
    budget_bytes = peak_bytes(info, load, 1024 // window_share)
    with prefill_alone(info, budget_bytes) as prefill:
        part = begin(prefill, "a", 1024, 0, False)
        measured = measured_bytes(prefill, Step(0, 0, 1, 0, 3, (part,)))
    assert measured <= budget_bytes <= 1.5 * measured


def test_paused_requests_are_counted() -> None:
    load = StepLoad(1000, 500, 1000, 0)
    alone = StepLoad(1000, 0, 1000, 0)
    difference = peak_bytes(model(), load, 1000) - peak_bytes(model(), alone, 1000)
    assert difference == 500 * 4 * 512


def test_all_rows_go_at_once_where_memory_allows() -> None:
    load = StepLoad(1000, 0, 1000, 0)
    assert window_rows(model(), load, 0) == 1000
    assert window_rows(model(), load, peak_bytes(model(), load, 1000)) == 1000
    assert window_rows(model(), load, peak_bytes(model(), load, 1000) - 1) < 1000


def test_what_never_fits_is_refused_with_figures() -> None:
    load = StepLoad(1000, 0, 1000, 0)
    least = peak_bytes(model(), load, SMALLEST_WINDOW)
    with pytest.raises(ValueError, match=f"needs {least} bytes .* 1000 are allowed"):
        window_rows(model(), load, 1000)


@pytest.mark.parametrize("experts", [None, Experts(8, 2, 256, True, (0, 2))])
def test_the_weights_take_what_the_plan_of_memory_says(experts: Experts | None) -> None:
    info = model(experts=experts)
    real_bytes = tensor_specs(info)[1]
    assert 0.98 * real_bytes <= weights_bytes(info) <= real_bytes
