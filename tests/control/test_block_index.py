"""The hash table of the prefix trie: entering, waiting, and growing without forgetting."""

from __future__ import annotations

import random
from array import array

from vertumnusd.control.block_index import GONE, NOT_FOUND, SMALLEST, BlockIndex


class Nodes:
    """Nodes with random names, for an index."""

    def __init__(self, seed: int = 0) -> None:
        self.names, self.run_of = array("Q"), array("i")
        self.index = BlockIndex(self.names, self.run_of)
        self._random = random.Random(seed)

    def make(self, count: int) -> range:
        first = len(self.run_of)
        self.names.frombytes(self._random.randbytes(16 * count))
        self.run_of.extend([0] * count)
        return range(first, first + count)

    def find(self, node: int) -> int:
        return self.index.find(self.names[2 * node], self.names[2 * node + 1])

    def find_any(self, node: int) -> int:
        return self.index.find_any(self.names[2 * node], self.names[2 * node + 1])


def test_the_ends_of_a_run_are_found_at_once_and_the_others_when_asked_for():
    nodes = Nodes()
    run = nodes.make(50)
    nodes.index.enter_run(run.start, len(run))
    assert [nodes.find(node) for node in (0, 1, 49)] == [0, NOT_FOUND, 49]
    assert [nodes.find_any(node) for node in run] == list(run)
    assert nodes.find(1) == 1


def test_an_unknown_name_is_not_found():
    nodes = Nodes()
    nodes.make(3)
    nodes.index.enter(1)
    assert nodes.find_any(0) == NOT_FOUND
    assert nodes.index.find(nodes.names[2], 7) == NOT_FOUND  # half of the name is not enough


def test_a_node_that_is_gone_or_renamed_is_passed_by():
    nodes = Nodes()
    nodes.make(2)
    old = nodes.names[0], nodes.names[1]
    nodes.index.enter(0)
    nodes.run_of[0] = GONE
    assert nodes.index.find(*old) == NOT_FOUND
    nodes.names[0:2] = nodes.names[2:4]  # its number is given to another block
    nodes.run_of[0] = 0
    nodes.index.enter(0)
    assert nodes.index.find(*old) == NOT_FOUND
    assert nodes.find(0) == 0


def test_names_that_want_the_same_slot_are_told_apart():
    nodes = Nodes()
    nodes.make(200)
    for node in range(200):
        nodes.names[2 * node] = 5 + SMALLEST * (node % 3)
    nodes.index.enter_run(0, 100)
    for node in range(100, 200):
        nodes.index.enter(node)
    assert [nodes.find_any(node) for node in range(200)] == list(range(200))


def test_nothing_is_forgotten_while_the_table_grows():
    nodes = Nodes()
    choose = random.Random(1)
    live: set[int] = set()
    sizes = set()
    while len(nodes.run_of) < 3 * SMALLEST:
        run = nodes.make(choose.choice((1, 2, 40, 3000)))
        nodes.index.enter_run(run.start, len(run))
        live.update(run)
        for node in choose.sample(sorted(live), min(len(live), len(run) // 4)):
            live.discard(node)
            nodes.run_of[node] = GONE
        sizes.add(nodes.index.memory_bytes())
        for node in choose.choices(range(len(nodes.run_of)), k=20):
            assert nodes.find_any(node) == (node if node in live else NOT_FOUND)
    assert len(sizes) > 2
    assert [node for node in range(len(nodes.run_of)) if nodes.find_any(node) == node] == sorted(
        live
    )


def test_names_that_want_the_last_slots_while_the_table_grows_are_not_forgotten():
    nodes = Nodes()
    one_bytes = nodes.index.memory_bytes()
    while nodes.index.memory_bytes() == one_bytes:
        run = nodes.make(1000)
        nodes.index.enter_run(run.start, len(run))
    both_bytes = nodes.index.memory_bytes()
    last = nodes.make(20)
    for node in last:
        nodes.names[2 * node] = SMALLEST - 1  # most find a slot at the beginning of the table
        nodes.index.enter(node)
    while nodes.index.memory_bytes() == both_bytes:
        nodes.index.enter(nodes.make(1).start)
    assert [nodes.find(node) for node in last] == list(last)


def test_what_comes_and_goes_does_not_fill_the_table():
    nodes = Nodes()
    nodes.make(100)
    source = random.Random(2)
    for _ in range(2000):
        nodes.names[:] = array("Q", source.randbytes(1600))
        nodes.index.enter_run(0, 100)
        nodes.find_any(50)
    assert nodes.index.memory_bytes() <= 2 * 4 * SMALLEST
