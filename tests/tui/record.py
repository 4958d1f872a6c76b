"""Makes ``swing.jsonl.gz``: two minutes of a simulated cluster whose load swings.

    python tests/tui/record.py          from the root of the repository

Adaptation is eager here, so that a short recording has splits, merges, copies and reclaims. The
file is kept as it is: the policy changes, and with it what this makes, but what the goldens are to
show does not. It needs to be renewed only when the console wants more than it has. Then run this,
look in ``vertumnusd tui --replay`` for a split and a merge, write when they are into
``screens.py``, run that, and look at what git says has changed. ``shots.py`` draws the pictures of
``docs/console/``.
"""

from __future__ import annotations

import gzip
import io
from pathlib import Path

from vertumnusd.simulate.choice import Choice
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.controlled import run_controlled
from vertumnusd.simulate.generate import Phase, generate
from vertumnusd.simulate.record import Recording
from vertumnusd.simulate.traces import arrivals

FILE = Path(__file__).parent / "swing.jsonl.gz"
INTERVAL_S = 2.0
PHASES = (Phase(60.0, 1.8, "long"), Phase(40.0, 5.0, "short"), Phase(30.0, 1.8, "l-eval"))


def record() -> bytes:
    choice = Choice(
        "ours",
        "1CP8/2CP4",
        reconfigures=True,
        replicates=True,
        hold_windows=1,
        capacity_factor=0.5,
    )
    conditions = Conditions(
        ranks=16,
        cp_degrees=(2, 4, 8),
        kv_tokens=90_000,
        capacity_shares=((2, 0.8), (4, 0.8), (8, 0.8)),
        link_bytes_s=3e8,
    )
    lines = io.BytesIO()
    recording = Recording(lines, INTERVAL_S, choice.policy)
    run_controlled(choice, arrivals(generate(PHASES, 1), 0, 0.1), conditions, recording)
    return lines.getvalue()


if __name__ == "__main__":
    FILE.write_bytes(gzip.compress(record(), 9, mtime=0))
