"""Promised blocks: the multiset, and placements that count on it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from scenario import PREFILL_TIME, blocks, boot, settings

from vertumnusd.control.controller import Controller
from vertumnusd.control.fleet import Worker
from vertumnusd.control.promised import Promised, common_blocks, marks
from vertumnusd.messages import Cancel, Placed, PrefillDone, Submit

LEFT, RIGHT = Worker(1, 0), Worker(1, 1)


def chain(path: str) -> bytes:
    return b"".join(blocks(path))


def test_a_worker_promises_the_longest_prefix_of_its_chains():
    promised = Promised()
    promised.add(LEFT, blocks("abcd"))
    promised.add(RIGHT, blocks("abx"))
    assert promised.prefixes(blocks("abcz")) == [(1 << RIGHT.base, 2), (1 << LEFT.base, 3)]
    assert promised.prefixes(blocks("b")) == []


def test_a_chain_promised_twice_stays_until_both_are_gone():
    promised = Promised()
    promised.add(LEFT, blocks("ab"))
    promised.add(LEFT, blocks("abc"))
    promised.remove(LEFT, blocks("abc"))
    assert promised.prefixes(blocks("abc")) == [(1 << LEFT.base, 2)]
    promised.remove(LEFT, blocks("ab"))
    assert not promised


def test_marks_are_the_ends_of_whole_stretches():
    assert marks(chain("abcdefgh"), 3) == [blocks("abc")[-1], blocks("abcdef")[-1]]


paths = st.text("ab", max_size=12)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([LEFT, RIGHT]), paths)), paths)
def test_promises_are_those_of_the_chains_that_are_left(steps, probe):
    promised = Promised()
    left: list[tuple[Worker, str]] = []
    for adds, worker, path in steps:
        if adds:
            promised.add(worker, blocks(path))
            left.append((worker, path))
        elif left:
            gone, path = left.pop(len(path) % len(left))
            promised.remove(gone, blocks(path))
    expected = {}
    for worker in (LEFT, RIGHT):
        shared = [common_blocks(chain(path), chain(probe)) for w, path in left if w == worker]
        if longest := max(shared, default=0):
            expected[1 << worker.base] = longest
    found = promised.prefixes(blocks(probe))
    assert {bit: n for mask, n in found for bit in (1, 2) if mask & bit} == expected
    assert [n for _, n in found] == sorted(n for _, n in found)


@given(paths, paths)
def test_common_blocks_are_those_of_a_walk(one, other):
    pairs = zip(blocks(one), blocks(other), strict=False)
    walked = 0
    for mine, theirs in pairs:
        if mine != theirs:
            break
        walked += 1
    assert common_blocks(chain(one), chain(other)) == walked


# --- placement


def booted(policy: str, composition: str = "2CP1") -> Controller:
    chosen = settings(ranks=2, composition=composition, policy=policy)
    controller = Controller(chosen, PREFILL_TIME)
    boot(controller, chosen)
    return controller


def submit(controller: Controller, name: str, path: str, *, keep: bool = True) -> dict[str, Any]:
    """Five tokens more than the path; the commands by their kind."""
    event = Submit(name, 0, 10 * len(path) + 5, chain(path), 1, keep)
    return {type(command).__name__: command for command in controller.step(1.0, event)}


def led(policy: str, *, keep: bool = True) -> Controller:
    """A leader, 1.05 s, runs on CP1[0]; CP1[1] has less to do, 0.95 s."""
    controller = booted(policy)
    assert submit(controller, "leader", "abcdefghij", keep=keep)["Placed"].worker == "CP1[0]"
    assert submit(controller, "other", "zyxwvutsr")["Placed"].worker == "CP1[1]"
    return controller


def test_a_follower_goes_where_its_prefix_is_about_to_be():
    placed = submit(led("ours"), "follower", "abcdefghijk")["Placed"]
    # 1.05 s behind the leader and 15 tokens, against 0.95 s and 115 tokens
    assert (placed.worker, placed.cached_tokens, placed.cost_s) == ("CP1[0]", 100, 1.2)


def test_the_published_policy_counts_only_what_is_cached():
    placed = submit(led("paper"), "follower", "abcdefghijk")["Placed"]
    assert (placed.worker, placed.cached_tokens) == ("CP1[1]", 0)


def test_a_cancelled_leader_promises_nothing():
    controller = led("ours")
    controller.step(1.0, Cancel("leader"))
    assert submit(controller, "follower", "abcdefghijk")["Placed"].cached_tokens == 0


def test_a_leader_that_is_not_kept_promises_nothing():
    controller = led("ours", keep=False)
    assert submit(controller, "follower", "abcdefghijk")["Placed"].cached_tokens == 0


def test_once_it_is_prefilled_only_what_is_cached_counts():
    controller = led("ours")
    controller.step(2.0, PrefillDone("leader", 0, 0, 1.0))
    assert submit(controller, "follower", "abcdefghijk")["Placed"].cached_tokens == 0


def test_one_token_is_always_left_to_compute():
    controller = led("ours")
    event = Submit("same", 0, 100, chain("abcdefghij"), 1)
    placed = next(c for c in controller.step(1.0, event) if isinstance(c, Placed))
    assert placed.cached_tokens == 90


def test_a_follower_runs_in_the_home_of_the_one_ahead():
    homes = {}
    for policy in ("ours", "paper"):
        controller = booted(policy, "1CP2")
        leader = submit(controller, "leader", "abcdefghij")["Dispatch"]
        follower = submit(controller, "follower", "abcdefghijk")["Dispatch"]
        homes[policy] = (leader.home_base, follower.home_base, round(follower.predicted_s, 6))
    # 15 tokens at degree 2 behind what is promised; else 115 in the emptier home
    assert homes == {"ours": (0, 0, 0.075), "paper": (0, 1, 0.575)}
