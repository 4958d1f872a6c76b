"""Every protocol trace in tests/scenarios, played."""

from __future__ import annotations

from pathlib import Path

import pytest
import scenario

SCENARIOS = sorted((Path(__file__).parent.parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path):
    scenario.play(path)


def test_there_are_scenarios():
    assert len(SCENARIOS) >= 10
