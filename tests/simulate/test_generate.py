from __future__ import annotations

import numpy as np
import pytest

from vertumnusd.simulate.generate import WORKLOADS, Phase, generate


@pytest.mark.parametrize("kind", WORKLOADS)
def test_lengths_and_reuse_are_the_published_ones(kind):
    rows = generate([Phase(1000.0, 8.0, kind)], seed=3)
    published = WORKLOADS[kind]
    tokens = np.array([row.input_tokens for row in rows])
    assert tokens.mean() == pytest.approx(published.mean_tokens, rel=0.06)
    assert np.percentile(tokens, 99) == pytest.approx(published.p99_tokens, rel=0.1)
    assert reuse(rows) == pytest.approx(published.reuse, abs=0.02)


def reuse(rows):
    """Share of the tokens that an endless cache would hold; every block's path is checked."""
    parents = {}
    reused = 0
    for row in rows:
        known = 0
        for parent, block in zip((-1, *row.blocks), row.blocks, strict=False):
            known += block in parents
            assert parents.setdefault(block, parent) == parent
        reused += known
    return 512 * reused / sum(row.input_tokens for row in rows)


def test_phases_follow_each_other_with_their_own_rates():
    rows = generate([Phase(100.0, 5.0, "short"), Phase(50.0, 40.0, "long")], seed=1)
    times = [row.timestamp_ms for row in rows]
    assert times == sorted(times)
    first = [row for row in rows if row.timestamp_ms < 100_000]
    assert len(first) == pytest.approx(500, rel=0.15)
    assert len(rows) - len(first) == pytest.approx(2000, rel=0.15)
    assert times[-1] < 150_000


def test_a_seed_gives_the_same_load():
    phases = [Phase(20.0, 5.0, "conversation")]
    assert generate(phases, 1) == generate(phases, 1)
    assert generate(phases, 1) != generate(phases, 2)
