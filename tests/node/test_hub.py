"""The node as a whole on fake ranks: every request one answer, everything given back."""

import random

import pytest
from fake_ranks import World, assert_all_answered, assert_base_line, expected

from vertumnusd.control.answering import Answering
from vertumnusd.control.lead import Lead
from vertumnusd.control.lead_run import Run
from vertumnusd.control.settings import ReplicationSettings
from vertumnusd.messages import (
    BlocksChanged,
    Dispatch,
    Finished,
    Merge,
    Placed,
    PrefillDone,
    Replicate,
    StepDone,
)

SCRIPTS = 150
COPYING = ReplicationSettings(
    enabled=True,
    scan_s=0.05,
    intra_accesses=1.0,
    inter_missed_s=0.001,
    reclaim_accesses=0.4,
    reclaim_above=0.1,
    transfer_deadline_s=0.5,
)
COMPOSITIONS = (("1CP2/2CP1", 1), ("2CP2", 1), ("4CP1", 1), ("2CP2", 2), ("1CP4", 2))


def test_a_request_is_placed_answered_and_forgotten():
    world = World()
    world.submit("a", list(range(10)), 5)
    world.settle()

    assert isinstance(world.answers["a"][0], Placed)
    assert world.tokens("a") == expected("a", 5)
    (finished,) = world.endings("a")
    assert (finished.reason, finished.output_tokens) == ("length", 5)
    assert_base_line(world)


def test_a_second_request_finds_the_prefix_of_the_first():
    world = World()
    world.submit("a", list(range(16)), 2)
    world.settle()
    world.submit("b", [*range(16), 99], 2)
    world.settle()

    assert world.endings("b")[0].cached_tokens == 16


def test_followers_of_a_running_leader_hit_what_it_publishes():
    world = World(composition="4CP1")
    for name in "abc":
        world.submit(name, [*range(40), ord(name)], 1)
    world.settle()
    cached = [world.endings(name)[0].cached_tokens for name in "abc"]
    workers = {world.endings(name)[0].worker for name in "abc"}
    assert len(workers) == 3 or max(cached) == 40


@pytest.mark.parametrize("rank", [0, 2, 4])
@pytest.mark.parametrize("messages_first", range(0, 60, 4))
def test_a_lost_rank_changes_no_answer(rank, messages_first):
    world = World()
    for name in "abcd":
        world.submit(name, list(range(ord(name), ord(name) + 14)), 6)
    for _ in range(messages_first):
        for r in range(5):
            world.deliver_in(r)
            world.deliver_out(r)
        world.ranks[4].beat()
    world.kill(rank)
    world.settle()

    for name in "abcd":
        assert world.tokens(name) == expected(name, 6)
        assert [type(e) for e in world.endings(name)] == [Finished]
    assert_base_line(world)


def run_script(seed: int) -> None:
    """Random arrivals, departures, kills and message orders; then quiet, and a look around."""
    rng = random.Random(seed)
    composition, home_ranks = rng.choice(COMPOSITIONS)
    world = World(composition=composition, home_ranks=home_ranks, replication=COPYING)
    wanted: dict[str, int] = {}
    left: set[str] = set()
    kills = 0
    for _ in range(rng.randrange(50, 600)):
        world.now += rng.random() * 0.01
        choice = rng.random()
        if choice < 0.04 and len(wanted) < 25:
            name = f"r{len(wanted)}"
            wanted[name] = rng.choice((0, 1, 2, 5))
            shared = [7] * rng.choice((0, 8, 16, 24))
            tail = [rng.randrange(100) for _ in range(rng.randrange(1, 20))]
            world.submit(name, shared + tail, wanted[name])
        elif choice < 0.06 and wanted:
            name = rng.choice(sorted(wanted))
            left.add(name)
            world.hub.leave(name)
        elif choice < 0.065 and kills < 2:
            kills += 1
            world.kill(rng.randrange(5))
        elif choice < 0.15:
            world.ranks[4].beat()
        elif choice < 0.16:
            world.hub.tick()
        elif rng.random() < 0.5:
            world.deliver_in(rng.randrange(5))
        else:
            world.deliver_out(rng.randrange(5))
    world.settle()
    assert_all_answered(world, wanted, left)
    assert_base_line(world)


@pytest.mark.parametrize("seed", range(SCRIPTS))
def test_random_scripts_answer_everybody_once_and_leak_nothing(seed):
    run_script(seed)


def test_a_prompt_that_no_home_can_hold_lies_on_all_of_its_worker():
    world = World(composition="1CP2/2CP1")  # 24 blocks of 4 tokens a rank
    tokens = list(range(4 * 30))
    for name, prompt in (("a", tokens), ("b", tokens), ("c", [*tokens[:40], 999])):
        world.submit(name, prompt, 2)
        world.settle()
    dispatches = [r for r in world.reports if isinstance(r, Dispatch)]
    assert [(d.worker, d.home_base, d.home_ranks) for d in dispatches] == [("CP2[0-1]", 0, 2)] * 3
    assert [world.endings(name)[0].cached_tokens for name in "abc"] == [0, 116, 40]
    assert_base_line(world)


def test_a_prompt_that_only_a_merge_could_hold_waits_for_it():
    world = World(composition="4CP1")
    world.submit("a", list(range(4 * 30)), 2)
    world.settle()
    assert world.endings("a") == []
    world.hub.command(Merge(2, 0))
    world.settle()
    assert world.tokens("a") == expected("a", 2)
    assert_base_line(world)


def test_a_wanted_prefix_is_copied_to_where_a_request_finds_it():
    world = World(composition="4CP1", replication=COPYING)
    chain = world._chain([7] * 24, b"")
    for name in ("a", "b", "c"):
        world.submit(name, [7] * 25, 0)
        world.settle()
    trie = world.hub._controller._scheduler.matching.trie
    assert len(trie.match(chain)) == 1
    world.now += COPYING.scan_s
    world.hub.tick()
    (copy,) = world.hub.snapshot()["transfers"]
    assert (copy["kind"], copy["phase"], copy["blocks"]) == ("intra", "gathering", 6)
    world.settle()
    assert sorted(trie.match(chain).values()) == [6, 6]
    assert any(isinstance(report, Replicate) for report in world.reports)
    assert_base_line(world)


def test_a_rank_whose_report_was_lost_is_asked_for_all_of_it():
    world = World(composition="4CP1")
    world.submit("a", [7] * 25, 0)
    for rank in range(5):  # the request runs, and its worker's last report is dropped
        while world.deliver_in(rank) or world.deliver_out(rank):
            pass
    world.settle()
    world.submit("b", [8] * 25, 0)
    dropped = 0
    while not dropped:
        moved = [world.deliver_in(r) for r in range(5)]
        for r in range(4):
            out = world.ranks[r].out
            if out and isinstance(out[0], BlocksChanged) and out[0].stored:
                out.popleft()
                dropped += 1
            moved.append(world.deliver_out(r))
        assert any(moved) or dropped
    world.settle()
    trie = world.hub._controller._scheduler.matching.trie
    for tokens in ([7] * 24, [8] * 24):
        assert list(trie.match(world._chain(tokens, b"")).values()) == [6]


def forget_the_tokens_sent(monkeypatch):
    """A retry that starts over sends tokens twice."""
    original = Answering.on_lost

    def on_lost(self, attempt, reason):
        self.emitted.clear()
        return original(self, attempt, reason)

    monkeypatch.setattr(Answering, "on_lost", on_lost)


def release_before_the_last_pull(monkeypatch):
    """Blocks that are unpinned while the decode rank reads them are overwritten."""
    original = Run.pull

    def pull(run, step):
        commands = original(run, step)
        run.pulling = 0
        return commands

    monkeypatch.setattr(Run, "pull", pull)


def forget_to_release(monkeypatch):
    monkeypatch.setattr(Run, "release", lambda run: [])


def drop_the_end_of_a_prefill(monkeypatch):
    """A controller that never hears of it keeps the time reserved."""
    original = Lead.step

    def step(self, now, event):
        commands = original(self, now, event)
        drop = isinstance(event, StepDone)
        return [c for c in commands if not (drop and isinstance(c, PrefillDone))]

    monkeypatch.setattr(Lead, "step", step)


@pytest.mark.parametrize(
    "mutant",
    [
        forget_the_tokens_sent,
        release_before_the_last_pull,
        forget_to_release,
        drop_the_end_of_a_prefill,
    ],
)
def test_the_scripts_catch_a_broken_node(mutant, monkeypatch):
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        run_all_scripts()


def run_all_scripts() -> None:
    for seed in range(SCRIPTS):
        run_script(seed)
