"""What the log says of decisions."""

from __future__ import annotations

from structlog.testing import capture_logs

from vertumnusd.messages import Decided
from vertumnusd.node.announcements import announce


def test_a_decision_is_logged_with_what_each_composition_would_have_given():
    decided = Decided(
        window=1,
        verdict="merge",
        signal="merge",
        reason="1CP2 serves sooner",
        held=0,
        requests=12,
        demand_s=1.0,
        capacity_s=2.0,
        upper_s=1.8,
        lower_s=1.0,
        long_request_share=0.0,
        long_token_share=0.0,
        composition="2CP1",
        predicted_ttft_s=(("2CP1", 0.5), ("1CP2", 0.25)),
    )
    with capture_logs() as lines:
        announce(decided)
    assert lines[0]["predicted_ttft_s"] == "2CP1=0.500 1CP2=0.250"
