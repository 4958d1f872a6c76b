"""A prefix is reclaimed by hand: all that can go, children first, and nothing that is needed."""

import pytest
from scenario import blocks, booted, name_of

from vertumnusd.control.controller import Controller, IllegalEvent
from vertumnusd.messages import BlocksChanged, Done, PrefillDone, ReclaimPrefix, Submit


def holding(*paths: str) -> Controller:
    """One home of two, number 0, that holds these paths, stored in their order."""
    controller = booted(composition="2CP1", cp_degrees=(1,), ranks=2)
    for version, path in enumerate(paths, 1):
        chain = [name_of(""), *blocks(path)]
        stored = b"".join(map(bytes.__add__, chain, chain[1:]))
        controller.step(0.0, BlocksChanged(0, version, stored, b"", len(path), 0, 90))
    return controller


def gone(controller: Controller, path: str) -> list[str]:
    (command,) = controller.step(1.0, ReclaimPrefix(name_of(path), 0))
    text = command.blocks
    return [text[at : at + 16].rstrip(b"\0").decode() for at in range(0, len(text), 16)]


def test_what_is_behind_goes_first_and_what_is_before_where_nothing_else_follows():
    assert gone(holding("abcde"), "abc") == ["abcde", "abcd", "abc", "ab", "a"]


def test_what_another_path_needs_stays():
    assert gone(holding("abcd", "abxy"), "abc") == ["abcd", "abc"]


def test_what_a_request_needs_stays_and_so_does_the_path_to_it():
    controller = holding("abcd", "abcx")
    controller.step(0.5, Submit("r", 0, 45, b"".join(blocks("abcd")), 1))
    assert gone(controller, "abc") == ["abcx"]


def test_a_needed_prefix_is_refused_and_can_go_when_it_is_not_needed():
    controller = holding("abcd")
    controller.step(0.5, Submit("r", 0, 45, b"".join(blocks("abcd")), 1))
    with pytest.raises(IllegalEvent, match="needs"):
        gone(controller, "abcd")
    controller.step(0.6, PrefillDone("r", 0, 40, 1.0))
    controller.step(0.6, Done("r", 0))
    assert gone(controller, "abcd")[0] == "abcd"


def test_homes_without_it_and_names_of_nothing_are_refused():
    controller = holding("abcd")
    with pytest.raises(IllegalEvent, match="home 1 does not hold"):
        controller.step(1.0, ReclaimPrefix(name_of("abcd"), 1))
    assert controller.reclaims(name_of("zz")[:4]) == {}


def test_a_prefix_is_found_by_the_beginning_of_its_name():
    controller = holding("abcd")
    found = controller.reclaims(name_of("abcd")[:4])
    assert [(block, [each.home for each in at]) for block, at in found.items()] == [
        (name_of("abcd"), [0])
    ]
