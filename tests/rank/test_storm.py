"""Random splits, merges, kills, departures, copies and reclaims on real CPU ranks (``storm.py``).

Three seeds run with the other tests; ``make storm`` plays fifty.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Client, children, daemon
from storm import SECTIONS, Storm, eventually

pytestmark = pytest.mark.ranks


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        first, _, last = metafunc.config.getoption("--storms").partition("-")
        metafunc.parametrize("seed", range(int(first), int(last or first) + 1))


@pytest.fixture(scope="module")
def storm(long_folder: Path) -> Iterator[Storm]:
    with daemon(**SECTIONS, model={"path": str(long_folder)}) as node:
        storm = Storm(node)
        yield storm
        print("what happened:", dict(storm.happened), copied(node.port))
        pids = children(node.process.pid)
    assert node.process.returncode == 0
    assert eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def copied(port: int) -> str:
    """What the node counted, for who reads it."""
    with Client(port) as client:
        lines = client.request("GET", "/metrics")[1].decode().splitlines()
    counted = ("vertumnus_replications_total", "vertumnus_reclaimed_tokens_total")
    return " ".join(line for line in lines if line.startswith(counted))


def test_after_a_storm_everything_is_as_before(storm: Storm, seed: int) -> None:
    storm.play(seed)
