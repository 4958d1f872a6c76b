"""Settings are checked when made."""

from __future__ import annotations

import pytest
from scenario import settings

from vertumnusd.control.fleet import composition_name


def test_a_chain_fits_a_home_by_its_blocks():
    chosen = settings(home_ranks=2, cp_degrees=(2,), composition="1CP2", ranks=2, kv_blocks=10)
    assert chosen.home_blocks == 20
    assert [chosen.blocks(tokens) for tokens in (1, 10, 11)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"kv_blocks": 0}, "kv_blocks is 0; it must be above 0"),
        ({"decode_ranks": 0}, "decode_ranks is 0"),
        ({"unplaced_wait_s": -1.0}, "unplaced_wait_s is -1.0"),
        ({"beta": 0.5}, r"beta 0.5 must be ≥ 1"),
        ({"lambda_": -0.1}, r"lambda -0.1 ≥ 0"),
        ({"cp_degrees": (1, 1)}, "must be distinct"),
        ({"cp_degrees": (2, 3)}, "2 must divide 3"),
        ({"home_ranks": 2}, "2 must divide 1"),
        ({"composition": "3CP1"}, "uses 3 ranks of 4"),
        ({"policy": "theirs"}, "Invalid enum value 'theirs'"),
        ({"mark_tokens": 0}, "mark_tokens is 0"),
        ({"reconfiguration": {"window_s": 0}}, "window_s is 0.0"),
        (
            {"reconfiguration": {"merge_below": 0.9}},
            "merge_below 0.9 must be below split_above 0.9",
        ),
        ({"reconfiguration": {"capacity_shares": {2: 0}}}, "capacity_shares .* must be above 0"),
        ({"replication": {"scan_s": -1}}, "scan_s is -1.0"),
        ({"replication": {"decay": 1}}, "decay 1.0 must be below 1"),
        ({"replication": {"reclaim_accesses": 9}}, "reclaim_accesses 9.0 must be below"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_allowed(changed, said):
    with pytest.raises(ValueError, match=said):
        settings(**changed)


def test_an_automatic_composition_follows_from_the_history_and_the_capacities():
    # four ranks; κ = 10 s a worker and window: 2CP2 serve 20 s, 4CP1 40 s
    reconfiguration = {"window_s": 10, "capacity_share": 1.0}

    def workers(*demands_s: float) -> str:
        chosen = settings(
            composition="auto",
            historic_demands_s=demands_s,
            reconfiguration=reconfiguration,
        )
        return composition_name(chosen.workers())

    assert workers() == "2CP2"
    assert workers(5.0, 25.0) == "1CP2/2CP1"
    assert workers(99.0) == "4CP1"
