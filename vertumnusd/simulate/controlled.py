"""Runs under the controller: which settings it gets for a policy, and what ranks do for it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from vertumnusd.control.settings import (
    FetchSettings,
    ReconfigurationSettings,
    ReplicationSettings,
    Settings,
)
from vertumnusd.simulate.choice import Choice
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.outcome import Outcome
from vertumnusd.simulate.record import Recording
from vertumnusd.simulate.traces import BLOCK_TOKENS, Arrival
from vertumnusd.simulate.virtual import VirtualCluster

NO_LIMIT = 1e9


def run_controlled(
    choice: Choice,
    arrivals: Sequence[Arrival],
    conditions: Conditions,
    recording: Recording | None = None,
) -> Outcome:
    owned_at_degree = choice.policy == "paper"
    cluster = VirtualCluster(
        choice.policy, settings(choice, conditions), conditions, owned_at_degree
    )
    return cluster.run(arrivals, recording)


def settings(choice: Choice, conditions: Conditions) -> Settings:
    """Nothing is ever refused for overload: a comparison needs every request to end."""
    published = choice.policy == "paper"
    degrees = conditions.cp_degrees if published else conditions.degrees
    replication = ReplicationSettings(enabled=choice.replicates)
    placement = choice.changed_in("placement")
    return Settings(
        cp_degrees=degrees,
        ranks=conditions.ranks,
        home_ranks=min(degrees),
        composition=choice.composition,
        beta=placement.get("beta", 1.0),
        lambda_=placement.get("lambda", 0.0),
        block_tokens=BLOCK_TOKENS,
        kv_blocks=conditions.kv_blocks,
        decode_ranks=1,
        decode_kv_blocks=1,
        max_queue_tokens=10**15,
        max_queue_s=NO_LIMIT,
        unplaced_wait_s=NO_LIMIT,
        step_s=conditions.step_s,
        policy="paper" if published else "ours",
        left_out=choice.left_out,
        reconfiguration=_reconfiguration(choice, conditions),
        replication=replace(replication, **choice.changed_in("replication")),
        fetch=FetchSettings(token_s=conditions.kv_bytes_per_token / conditions.link_bytes_s),
    )


def _reconfiguration(choice: Choice, conditions: Conditions) -> ReconfigurationSettings:
    shares = {d: share * choice.capacity_factor for d, share in conditions.capacity_shares}
    settings = ReconfigurationSettings(automatic=choice.reconfigures, capacity_shares=shares)
    if choice.hold_windows:
        settings = replace(settings, hold_windows=choice.hold_windows)
    if choice.confidence:
        settings = replace(settings, confidence=choice.confidence)
    return replace(settings, **choice.changed_in("adaptation"))
