"""Both virtual clusters on traces of a few requests, with every time worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from simple import PROFILE, arrival, conditions, controlled, light

CLUSTERS = pytest.mark.parametrize("play", [light, controlled])


@CLUSTERS
def test_a_request_takes_its_prefill_time_at_the_degree_of_its_worker(play):
    # 1024 tokens: 2 s on CP1, 1 s on CP2, which wins
    outcome = play("1CP2/1CP1", [arrival(5.0, 1024, 1, 2)], conditions(3))
    assert outcome.ttft_s.tolist() == [1.0]
    assert outcome.degree.tolist() == [2]
    assert outcome.busy_gpu_s == 2.0
    assert outcome.span_s == 6.0


@CLUSTERS
def test_requests_wait_their_turn_and_reuse_what_was_computed_meanwhile(play):
    arrivals = [
        arrival(0.0, 1024, 1, 2),  # CP1[0] until 2
        arrival(0.5, 1024, 3, 4),  # CP1[1] until 2.5
        arrival(1.0, 1536, 1, 2, 5),  # queues are 2 s each: CP1[0], from 2 with 1024 cached, to 3
        arrival(1.0, 512, 6),  # CP1[1], from 2.5 to 3.5
    ]
    outcome = play("2CP1", arrivals, conditions(2, (1,)))
    assert outcome.ttft_s.tolist() == [2.0, 2.0, 2.0, 2.5]
    assert outcome.cached_tokens.tolist() == [0, 0, 1024, 0]
    # 2 + 2 + 1 + 1 seconds on one GPU each
    assert outcome.busy_gpu_s == 6.0


@CLUSTERS
def test_one_token_at_least_is_computed(play):
    # both blocks are cached, but a whole block must be left to compute
    arrivals = [arrival(0.0, 1024, 1, 2), arrival(9.0, 1024, 1, 2)]
    outcome = play("1CP1", arrivals, conditions(1, (1,)))
    assert outcome.cached_tokens.tolist() == [0, 512]
    assert outcome.ttft_s.tolist() == [2.0, 1.0]


@CLUSTERS
@pytest.mark.parametrize(("kv_blocks", "last_s"), [(2, 2.0), (4, 1.0)])
def test_the_least_recently_used_blocks_go_when_a_pool_is_full(play, kv_blocks, last_s):
    arrivals = [
        arrival(0.0, 1024, 1, 2),
        arrival(10.0, 1024, 3, 4),
        arrival(20.0, 1024, 1, 2),
    ]
    outcome = play("1CP1", arrivals, conditions(1, (1,), kv_blocks))
    assert outcome.ttft_s.tolist() == [2.0, 2.0, last_s]


@CLUSTERS
def test_noise_lengthens_a_prefill(play):
    outcome = play("1CP1", [arrival(0.0, 512, 1, noise=1.5)], conditions(1, (1,)))
    assert outcome.ttft_s.tolist() == [1.5]


@CLUSTERS
def test_a_degree_slower_than_its_profile_takes_longer_than_it_is_expected_to(play):
    slow = replace(conditions(2), paces=((2, 1.5),))
    outcome = play("1CP2", [arrival(0.0, 1024, 1, 2), arrival(0.0, 1024, 3, 4)], slow)
    assert outcome.ttft_s.tolist() == [1.5, 3.0]


@CLUSTERS
def test_a_prefix_attracts_a_request_to_a_longer_queue(play):
    arrivals = [
        arrival(0.0, 2048, 1, 2, 3, 4),  # CP1[0] until 4
        arrival(4.0, 512, 9),  # CP1[0] until 5
        arrival(4.5, 2560, 1, 2, 3, 4, 5),  # CP1[0]: 1 + 1 against 5: from 5 to 6
    ]
    outcome = play("2CP1", arrivals, conditions(2, (1,)))
    assert outcome.ttft_s.tolist() == pytest.approx([4.0, 1.0, 1.5])
    assert outcome.cached_tokens.tolist() == [0, 0, 2048]


def test_a_home_of_two_ranks_stores_a_chain_on_both():
    # each rank has room for two blocks; the chain of four fits only because they share it
    arrivals = [arrival(0.0, 2048, 1, 2, 3, 4), arrival(9.0, 2560, 1, 2, 3, 4, 5)]
    outcome = controlled("1CP2", arrivals, conditions(2, (2,), kv_blocks=3))
    assert outcome.cached_tokens.tolist() == [0, 2048]
    assert outcome.ttft_s.tolist() == [2.0, 0.5]


def test_what_no_home_can_hold_is_refused_and_counted():
    arrivals = [arrival(0.0, 2048, 1, 2, 3, 4), arrival(0.0, 512, 5)]
    outcome = controlled("1CP1", arrivals, conditions(1, (1,), kv_blocks=3))
    assert outcome.ttft_s.tolist() == [float("inf"), 1.0]
    assert outcome.ended == 2


def test_ours_lets_the_shortest_go_first():
    arrivals = [
        arrival(0.0, 512, 1),  # until 1
        arrival(0.1, 512, 2),  # one ahead, until 2
        arrival(0.2, 2048, 3, 4, 5, 6),  # waits, and the next one goes first: from 3 to 7
        arrival(0.5, 512, 7),  # from 2 to 3
    ]
    chosen = conditions(1, (1,))
    ours, paper = (controlled("1CP1", arrivals, chosen, name) for name in ("ours", "paper"))
    assert ours.ttft_s.tolist() == pytest.approx([1.0, 1.9, 6.8, 2.5])
    assert paper.ttft_s.tolist() == pytest.approx([1.0, 1.9, 5.8, 6.5])


def test_ours_computes_a_shared_prefix_once():
    arrivals = [
        arrival(0.0, 512, 9),  # until 1
        arrival(0.1, 512, 8),  # one ahead, until 2
        arrival(0.2, 2048, 1, 2, 3, 4),  # from 2 to 6
        # counts on the prefix of the one before and so would go first, until it is looked at again
        arrival(0.3, 2560, 1, 2, 3, 4, 5),  # from 6 to 7
    ]
    outcome = controlled("1CP1", arrivals, conditions(1, (1,)), "ours")
    assert outcome.ttft_s.tolist() == pytest.approx([1.0, 1.9, 5.8, 6.7])
    assert outcome.cached_tokens.tolist() == [0, 0, 0, 2048]


def test_ours_pauses_a_long_prefill_for_a_short_one():
    arrivals = [
        arrival(0.0, 4096, *range(8)),  # 8 s, of which two steps of 1 s are at the ranks
        arrival(0.5, 512, 9),  # from 2 to 3
    ]
    chosen = replace(conditions(1, (1,)), layers=8, step_s=1.0)
    played = {name: controlled("1CP1", arrivals, chosen, name) for name in ("ours", "paper")}
    assert played["ours"].ttft_s.tolist() == pytest.approx([9.0, 2.5])
    assert played["paper"].ttft_s.tolist() == pytest.approx([8.0, 8.5])
    assert played["ours"].busy_gpu_s == pytest.approx(9.0)


def test_ours_packs_short_requests(tmp_path):
    profile = tmp_path / "overhead.toml"
    profile.write_text(Path(PROFILE).read_text().replace("d_s = 0.0", "d_s = 0.5"))
    arrivals = [arrival(0.1 * n, 512, n) for n in range(4)]  # 1.5 s each; the overhead is 0.5 s
    chosen = replace(conditions(1, (1,)), profile=str(profile), step_s=4.0)
    # two steps are at the ranks when the last two come, which then share one
    ours = controlled("1CP1", arrivals, chosen, "ours")
    assert ours.ttft_s.tolist() == pytest.approx([1.5, 2.9, 5.3, 5.2])
    paper = controlled("1CP1", arrivals, chosen, "paper")
    assert paper.ttft_s.tolist() == pytest.approx([1.5, 2.9, 4.3, 5.7])
