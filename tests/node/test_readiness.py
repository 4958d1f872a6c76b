from __future__ import annotations

import pytest

from vertumnusd.messages import Exposed, RankDown, RankUp, Withdrawn
from vertumnusd.node.readiness import Readiness


class Node:
    takes_work = True

    def __init__(self) -> None:
        self.readiness = Readiness(workers=2, takes_work=lambda: self.takes_work)


@pytest.fixture
def node() -> Node:
    """One that serves."""
    made = Node()
    made.readiness.served = True
    made.readiness.happened(RankUp(4, "decode", 1))
    return made


def exposed(base: int) -> Exposed:
    return Exposed(1, 1, f"CP1[{base}]", 1, base)


def test_all_are_exposed_when_as_many_serve_as_the_composition_has():
    readiness = Node().readiness
    readiness.happened(exposed(0))
    readiness.happened(Withdrawn(1, 1, "CP1[0]", "lost"))
    readiness.happened(exposed(1))
    assert not readiness.all_exposed.is_set()
    readiness.happened(exposed(0))
    assert readiness.all_exposed.is_set()


def test_until_it_has_served_it_says_what_goes_on():
    readiness = Node().readiness
    assert readiness.reason() == "starting"
    readiness.loading = "loading weights: 43 %"
    assert readiness.reason() == "loading weights: 43 %"


def test_a_node_that_serves_has_no_reason(node):
    assert node.readiness.reason() == ""


def test_without_workers_no_work_is_taken(node):
    node.takes_work = False
    assert node.readiness.reason() == "no worker serves"


def test_without_decode_ranks_no_work_is_taken(node):
    node.readiness.happened(RankUp(5, "decode", 1))
    node.readiness.happened(RankUp(0, "prefill", 1))
    node.readiness.happened(RankDown(4, "decode", "killed"))
    assert node.readiness.reason() == ""
    node.readiness.happened(RankUp(4, "decode", 2))
    node.readiness.happened(RankDown(4, "decode", "killed", also=(5,)))
    assert node.readiness.reason() == "no decode rank serves"


def test_draining_comes_before_all_else(node):
    node.takes_work = False
    node.readiness.draining = True
    assert node.readiness.reason() == "draining"
