"""A profile to reckon with: 512 uncached tokens take 1 s on one device, half of it on two."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vertumnusd.control.fleet import parse_composition
from vertumnusd.simulate.choice import Choice
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.controlled import run_controlled
from vertumnusd.simulate.light import LightCluster
from vertumnusd.simulate.outcome import Outcome
from vertumnusd.simulate.routers import ByCost
from vertumnusd.simulate.traces import Arrival

PROFILE = str(Path(__file__).parent / "simple.toml")


def conditions(ranks: int, degrees: tuple[int, ...] = (1, 2), kv_blocks: int = 100) -> Conditions:
    return Conditions(
        profile=PROFILE,
        ranks=ranks,
        cp_degrees=degrees,
        kv_tokens=512 * kv_blocks,
        noise_sigma=0.0,
        outside_s=0.0,
    )


def arrival(at_s: float, tokens: int, *blocks: int, noise: float = 1.0) -> Arrival:
    assert len(blocks) == tokens // 512
    return Arrival(at_s, tokens, blocks, noise)


def light(composition: str, arrivals: Sequence[Arrival], chosen: Conditions) -> Outcome:
    workers = parse_composition(composition, chosen.cp_degrees, chosen.ranks)
    return LightCluster("mix", workers, ByCost(workers), chosen).run(arrivals)


def controlled(
    composition: str, arrivals: Sequence[Arrival], chosen: Conditions, policy: str = "paper"
) -> Outcome:
    return run_controlled(Choice(policy, composition), arrivals, chosen)
