"""An iteration that there is no memory for: who is answered all the same, and who is not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from vertumnusd.rank.decoding import each_or_none
from vertumnusd.rank.device import is_out_of_memory

pytestmark = pytest.mark.ranks

SLOTS = [SimpleNamespace(tokens=tokens) for tokens in (10, 1000, 30)]


def forward_within(tokens: int):
    """A forward that has memory for so many tokens in all; the logits are a slot's tokens."""

    def forward(running):
        wanted = sum(slot.tokens for slot in running)
        if wanted > tokens:
            torch.empty(1 << 60)  # what torch really raises
        return torch.tensor([[slot.tokens] for slot in running])

    return forward


def answered(tokens: int) -> list[bool]:
    found = each_or_none(forward_within(tokens), SLOTS)
    for slot, logits in zip(SLOTS, found, strict=True):
        assert isinstance(logits, MemoryError) or logits.tolist() == [slot.tokens]
    return [not isinstance(logits, MemoryError) for logits in found]


def test_all_go_together_where_there_is_memory():
    assert answered(2000) == [True, True, True]


def test_where_there_is_none_for_all_each_goes_by_itself():
    assert answered(1000) == [True, True, True]


def test_only_the_one_that_needs_too_much_fails():
    assert answered(100) == [True, False, True]


def test_other_failures_are_not_taken_for_want_of_memory():
    def broken(running):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        each_or_none(broken, SLOTS)
    assert is_out_of_memory(MemoryError())
