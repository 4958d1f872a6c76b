"""Slots of a decode rank: blocks have one owner, and no new one while a thread touches them."""

from __future__ import annotations

import pytest

from vertumnusd.messages import Generate, Open, Sampling
from vertumnusd.rank.blocks import NoRoom
from vertumnusd.rank.slots import Slot, Slots


def opened(slots: Slots, request: str, blocks: int, stop_tokens: tuple[int, ...] = ()) -> None:
    slots.open(Open(request, blocks, Sampling(), stop_tokens))


def running(slots: Slots, request: str = "a", new_tokens: int = 3, stop: int = 99) -> Slot:
    """A slot of two blocks, in its first iteration, behind five tokens of input."""
    opened(slots, request, 2, (stop,))
    slots.generate(Generate(request, 7, 5, 0, new_tokens))
    return next(slot for slot in slots.begin_iteration() if slot.request == request)


def test_a_request_gets_one_run_of_blocks() -> None:
    slots = Slots(blocks=8, block_tokens=4, context_tokens=64)
    opened(slots, "a", 3)
    assert slots.begin_pull("a").block_ids == [0, 1, 2]
    assert slots.free_blocks == 5


def test_without_room_the_request_stays_open_and_failed() -> None:
    slots = Slots(blocks=4, block_tokens=4, context_tokens=64)
    with pytest.raises(NoRoom):
        opened(slots, "a", 5)
    assert slots.begin_pull("a") is None
    slots.generate(Generate("a", 7, 0, 0, 1))
    assert slots.begin_iteration() == []
    assert slots.close("a")
    assert slots.free_blocks == 4


def test_a_request_runs_once_its_copies_are_done() -> None:
    slots = Slots(blocks=8, block_tokens=4, context_tokens=64)
    opened(slots, "a", 2)
    copies = [slots.begin_pull("a"), slots.begin_pull("a")]
    slots.generate(Generate("a", 7, 5, 0, 3))
    for slot in copies:
        assert slots.begin_iteration() == []
        assert slot is not None
        slots.end_pull(slot)
    assert slots.begin_iteration() == [copies[0]]


@pytest.mark.parametrize("input_tokens", [5, 6])
def test_an_answer_must_fit_its_blocks(input_tokens: int) -> None:
    """The first token and all drawn ones but the last are stored: 5 + 3 fit eight places."""
    slots = Slots(blocks=8, block_tokens=4, context_tokens=64)
    opened(slots, "a", 2)
    if input_tokens == 6:
        with pytest.raises(ValueError, match="9 tokens do not fit the room for 8"):
            slots.generate(Generate("a", 7, input_tokens, 0, 3))
        assert slots.begin_iteration() == []
    else:
        slots.generate(Generate("a", 7, input_tokens, 0, 3))
        assert len(slots.begin_iteration()) == 1


def test_an_answer_must_fit_the_context() -> None:
    slots = Slots(blocks=8, block_tokens=4, context_tokens=7)
    opened(slots, "a", 2)
    with pytest.raises(ValueError, match="8 tokens do not fit the room for 7"):
        slots.generate(Generate("a", 7, 5, 0, 3))


def test_an_answer_advances_to_its_length() -> None:
    slots = Slots(blocks=8, block_tokens=4, context_tokens=64)
    slot = running(slots, new_tokens=2)
    assert (slot.token, slot.stored_tokens, slot.position) == (7, 5, 0)
    assert slot.advance(8) == ""
    assert (slot.token, slot.stored_tokens, slot.position) == (8, 6, 1)
    assert slot.advance(9) == "length"
    slots.end_iteration([slot])
    assert slots.begin_iteration() == []


def test_a_stop_token_ends_the_answer_even_as_its_last() -> None:
    assert running(Slots(8, 4, 64), new_tokens=3, stop=8).advance(8) == "stop"
    assert running(Slots(8, 4, 64), new_tokens=1, stop=8).advance(8) == "stop"


def test_a_finished_request_keeps_its_blocks_until_it_is_closed() -> None:
    slots = Slots(blocks=8, block_tokens=4, context_tokens=64)
    slot = running(slots, new_tokens=1)
    slot.advance(8)
    assert slots.end_iteration([slot]) == []
    assert slots.free_blocks == 6
    assert slots.close("a")
    assert slots.free_blocks == 8


def test_a_close_amid_an_iteration_frees_after_it() -> None:
    slots = Slots(blocks=8, block_tokens=4, context_tokens=64)
    slot = running(slots)
    assert not slots.close("a")
    assert slot.advance(8) is None
    assert slots.free_blocks == 6
    assert slots.end_iteration([slot]) == [slot]
    assert slots.free_blocks == 8


def test_a_close_amid_copies_frees_after_the_last() -> None:
    slots = Slots(blocks=8, block_tokens=4, context_tokens=64)
    opened(slots, "a", 2)
    first, second = slots.begin_pull("a"), slots.begin_pull("a")
    assert first is not None
    assert second is not None
    assert not slots.close("a")
    opened(slots, "a", 6)  # the name is free at once, the blocks are not
    assert not slots.end_pull(first)
    assert slots.free_blocks == 0
    assert slots.end_pull(second)
    assert slots.free_blocks == 2


def test_unknown_and_repeated_requests_are_ignored() -> None:
    slots = Slots(blocks=8, block_tokens=4, context_tokens=64)
    slots.generate(Generate("a", 7, 5, 0, 3))
    assert not slots.close("a")
    assert slots.begin_pull("a") is None
    slot = running(slots)
    opened(slots, "a", 4)
    slots.generate(Generate("a", 1, 1, 1, 1))
    assert (slot.token, slot.tokens_left, slots.free_blocks) == (7, 3, 6)
