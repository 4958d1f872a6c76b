"""A degree that is slower than the profile says, and nobody is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vertumnusd.control.paces import Paces
from vertumnusd.live.experiment import live_settings
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.generate import Phase, generate
from vertumnusd.simulate.traces import arrivals
from vertumnusd.simulate.virtual import VirtualCluster

pytestmark = pytest.mark.patches

CONDITIONS = Conditions(
    ranks=8, cp_degrees=(1, 2, 4), noise_sigma=0.0, outside_s=0.0, paces=((4, 1.6),)
)


def mean_ttft_s(conditions: Conditions) -> float:
    """Of ten minutes of conversations, beginning with degree 2."""
    drawn = arrivals(generate((Phase(600.0, 3.0, "conversation"),), 1), 0, 0.0)
    settings = live_settings("4CP2", True, conditions, 20.0)
    return float(np.mean(VirtualCluster("ours", settings, conditions, False).run(drawn).ttft_s))


def test_what_is_slower_than_the_profile_says_is_given_up_again(monkeypatch):
    followed_s = mean_ttft_s(CONDITIONS)
    monkeypatch.setattr(Paces, "of", lambda self, now, degrees: dict.fromkeys(degrees, 1.0))
    assert followed_s < 0.8 * mean_ttft_s(CONDITIONS)


def test_where_the_profile_is_right_paces_change_nothing(monkeypatch):
    conditions = replace(CONDITIONS, paces=())
    followed_s = mean_ttft_s(conditions)
    monkeypatch.setattr(Paces, "of", lambda self, now, degrees: dict.fromkeys(degrees, 1.0))
    assert followed_s == mean_ttft_s(conditions)
