"""Attention with log-sum-exp: every implementation against the plain form, and the merge."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import ModuleType

import pytest
import torch
from torch import Tensor
from vertumnus_kernels import attention, flash_cpu, onednn, plain
from vertumnus_kernels.merge import merge

pytestmark = pytest.mark.ranks

FAST = [pytest.param(module.attend, id=module.__name__) for module in (onednn, flash_cpu)]
# (queries, keys): one and few queries, block and bucket borders, more past than own tokens.
SIZES = [(1, 1), (1, 700), (5, 600), (31, 800), (32, 512), (128, 128), (129, 257), (300, 1111)]


def fused(queries: int, keys: int, heads: int = 6, kv_heads: int = 2) -> tuple[Tensor, ...]:
    """q, k, v as strided views of one tensor, which is how a fused projection leaves them."""
    noise = torch.Generator().manual_seed(queries * 10000 + keys)
    both_SJD = torch.randn(keys, heads + 2 * kv_heads, 32, generator=noise)
    q_THD, k_SKD, v_SKD = both_SJD.split((heads, kv_heads, kv_heads), dim=1)
    return q_THD[-queries:], k_SKD, v_SKD


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), SIZES)
@pytest.mark.parametrize("attend", FAST)
def test_equals_the_plain_form(
    attend: attention.Attend, queries: int, keys: int, causal: bool
) -> None:
    case = (*fused(queries, keys), causal, 0.2)
    out_THD, lse_HT = attend(*case)
    plain_THD, plain_lse_HT = plain.attend(*case)
    torch.testing.assert_close(out_THD, plain_THD, atol=5e-6, rtol=0)
    torch.testing.assert_close(lse_HT, plain_lse_HT, atol=5e-6, rtol=0)


@pytest.mark.parametrize("attend", FAST)
def test_large_scores_neither_overflow_nor_vanish(attend: attention.Attend) -> None:
    q_THD, k_SKD, v_SKD = fused(200, 200)
    case = (q_THD * 100, k_SKD, v_SKD, True, 0.2)
    torch.testing.assert_close(attend(*case), plain.attend(*case), atol=1e-3, rtol=1e-5)


@pytest.mark.parametrize("attend", FAST)
def test_bfloat16_inputs_give_float32_results(attend: attention.Attend) -> None:
    q_THD, k_SKD, v_SKD = (part.bfloat16() for part in fused(200, 300))
    out_THD, lse_HT = attend(q_THD, k_SKD, v_SKD, True, 0.2)
    assert out_THD.dtype == lse_HT.dtype == torch.float32
    wanted_THD, _ = plain.attend(q_THD, k_SKD, v_SKD, True, 0.2)
    torch.testing.assert_close(out_THD, wanted_THD, atol=2e-2, rtol=0)


def test_the_plain_form_is_softmax_attention() -> None:
    q_THD, k_SKD, v_SKD = fused(7, 7, heads=2, kv_heads=2)
    out_THD, lse_HT = plain.attend(q_THD, k_SKD, v_SKD, True, 0.2)
    for head in range(2):
        for query in range(7):
            scores_S = 0.2 * k_SKD[: query + 1, head] @ q_THD[query, head]
            wanted_D = torch.softmax(scores_S, 0) @ v_SKD[: query + 1, head]
            torch.testing.assert_close(out_THD[query, head], wanted_D)
            torch.testing.assert_close(lse_HT[head, query], scores_S.exp().sum().log())


def test_merged_parts_equal_attention_over_all_keys() -> None:
    q_THD, k_SKD, v_SKD = fused(40, 900)
    cuts = (0, 3, 500, 860)
    parts = [
        attention.attend(q_THD, k_SKD[start:stop], v_SKD[start:stop], False, 0.2)
        for start, stop in pairwise(cuts)
    ]
    parts.append(attention.attend(q_THD, k_SKD[860:], v_SKD[860:], True, 0.2))
    out_THD, lse_HT = merge(parts)
    wanted_THD, wanted_lse_HT = plain.attend(q_THD, k_SKD, v_SKD, True, 0.2)
    torch.testing.assert_close(out_THD, wanted_THD, atol=5e-6, rtol=0)
    torch.testing.assert_close(lse_HT, wanted_lse_HT, atol=5e-6, rtol=0)


def test_the_plain_form_takes_queries_by_the_block_and_leaves_out_what_none_sees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    block = plain._attend_block

    def spy(q_BHD: Tensor, k_SKD: Tensor, *rest: Tensor | bool | float) -> attention.Part:
        seen.append((len(q_BHD), len(k_SKD)))
        return block(q_BHD, k_SKD, *rest)  # type: ignore[arg-type]

    case = (*fused(600, 700), True, 0.2)
    monkeypatch.setattr(plain, "BLOCK", 1000)
    whole = plain.attend(*case)
    monkeypatch.undo()
    monkeypatch.setattr(plain, "_attend_block", spy)
    torch.testing.assert_close(plain.attend(*case), whole, atol=5e-6, rtol=0)
    assert seen == [(256, 356), (256, 612), (88, 700)]


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """The name of what is chosen, with these modules broken."""

    def broken(*case: Tensor | bool | float) -> attention.Part:
        raise RuntimeError("no such operator")

    def choose(*modules: ModuleType) -> str:
        for module in modules:
            monkeypatch.setattr(module, "attend", broken)
        attention.implementation.cache_clear()
        return attention.implementation().name

    yield choose
    monkeypatch.undo()
    attention.implementation.cache_clear()


def test_the_fast_form_is_chosen_here(choose: Callable[..., str]) -> None:
    assert choose() == "onednn"


def test_what_is_broken_is_passed_over(choose: Callable[..., str]) -> None:
    assert choose(onednn) == "torch-flash-cpu"
    assert choose(onednn, flash_cpu) == "plain"
    q_THD, k_SKD, v_SKD = fused(5, 9)
    attention.attend(q_THD, k_SKD, v_SKD, True, 0.2)


def test_what_is_not_installed_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(attention.CHOICES, "cpu", {"absent": "absent", "onednn": "onednn"})
    attention.implementation.cache_clear()
    assert attention.implementation().name == "onednn"
    attention.implementation.cache_clear()


def test_modules_for_cuda_are_not_imported_on_cpu() -> None:
    script = (
        "import sys; from vertumnus_kernels import attention, blocks; attention.implementation();"
        "blocks.implementation('cpu'); print([m for m in sys.modules if 'cuda' in m and 'vert' in m"
        " or m == 'vertumnus_kernels.blocks_triton'])"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert shown.stdout == "[]\n", shown


def test_a_form_that_is_off_is_not_chosen() -> None:
    def base_two(*case: Tensor | bool | float) -> attention.Part:
        out_THD, lse_HT = plain.attend(*case)  # type: ignore[arg-type]
        return out_THD, lse_HT / torch.tensor(2.0).log()

    def gone(*case: Tensor | bool | float) -> attention.Part:
        raise AttributeError("no such operator")

    assert attention.agrees(plain.attend)
    assert not attention.agrees(base_two)
    assert not attention.agrees(gone)


def test_no_keys_and_no_queries_are_refused() -> None:
    q_THD, k_SKD, v_SKD = fused(4, 4)
    with pytest.raises(AssertionError):
        attention.attend(q_THD, k_SKD[:0], v_SKD[:0], False, 0.2)
    with pytest.raises(AssertionError):
        attention.attend(q_THD[:0], k_SKD, v_SKD, False, 0.2)


def test_shapes_recur_so_that_generated_code_stays_bounded() -> None:
    widths = {onednn._key_bucket(keys) for keys in range(1, 8193)}
    assert len(widths) <= 60
    assert all(
        keys <= onednn._key_bucket(keys) < keys + max(keys // 8 + 1, 32) for keys in range(1, 8193)
    )


def test_flash_packs_the_heads_of_a_group_for_few_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []
    flash = flash_cpu._flash

    def spy(q_THD: Tensor, *rest: Tensor | bool | float) -> attention.Part:
        seen.append(tuple(q_THD.shape))
        return flash(q_THD, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(flash_cpu, "_flash", spy)
    flash_cpu.attend(*fused(2, 600), False, 0.2)
    flash_cpu.attend(*fused(9, 600), False, 0.2)
    assert seen == [(6, 2, 32), (9, 6, 32)]
