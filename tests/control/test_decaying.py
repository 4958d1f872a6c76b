"""Values that decay together: against a dict that is multiplied, and what they forget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vertumnusd.control.decaying import REWEIGHED, Decaying

NODES = [bytes([n]) for n in range(4)]


@given(st.lists(st.sampled_from([*NODES, None])))
def test_values_are_those_of_a_dict_that_is_multiplied(steps):
    values, plain = Decaying(mark=2.0, limit=10), dict.fromkeys(NODES, 0.0)
    for node in steps:
        if node is None:
            values.decay(0.5)
            plain = {n: value * 0.5 for n, value in plain.items()}
        else:
            values.add(node, 1.0)
            plain[node] += 1.0
    assert {node: values[node] for node in NODES} == pytest.approx(plain)
    assert {node for _, node in values.high()} == {n for n in NODES if plain[n] > 2.0}


def test_the_coldest_come_first_and_are_forgotten_when_there_are_too_many():
    values = Decaying(mark=1.0, limit=3)
    for node in (0, 1, 2, 0):
        values.add(NODES[node], 1.0)
    assert [node for _, node in values.coldest(2)] == [NODES[1], NODES[2]]
    values.add(NODES[3], 1.0)
    assert [node for _, node in values.coldest(9)] == [NODES[2], NODES[0], NODES[3]]


def test_weights_never_overflow():
    values = Decaying(mark=1.0, limit=3)
    values.add(NODES[0], 4.0)
    values.decay(1 / REWEIGHED)
    values.decay(1 / REWEIGHED)
    values.add(NODES[0], 4.0)
    assert values[NODES[0]] == pytest.approx(4.0)
    assert values.high() == [(pytest.approx(4.0), NODES[0])]
