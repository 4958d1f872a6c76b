"""A prefix that several workers are asked for comes to lie on all of them: paced ranks."""

from __future__ import annotations

import pytest
from harness import DOCUMENT, Client, ask_at_once, daemon

pytestmark = pytest.mark.ranks

WORKERS = 4


def test_a_hot_prefix_with_demand_on_four_workers_is_on_all_of_them_before_any_scan():
    with (
        daemon(
            cluster={"ranks": WORKERS, "cp_degrees": [1]},
            rank={"device": "paced", "pace": 0.5},
            adaptation={"automatic": False},
            replication={"scan_s": 600.0},  # none comes, and none is needed
        ) as node,
        Client(node.port) as client,
    ):
        first = client.complete(DOCUMENT[:4000])
        assert first.cached_tokens == 0
        answers = ask_at_once(node.port, [f"{DOCUMENT[:4000]} {n}" for n in range(4 * WORKERS)], 1)
    assert len({answer.facts["worker"] for answer in answers}) == WORKERS
    # each of them has it, and nobody computed it again
    assert all(answer.cached_tokens > 0.9 * answer.input_tokens for answer in answers)
