"""Splits and merges on the node: real controller, leads and block tables over fake ranks."""

import random
from collections.abc import Callable

import pytest
from fake_ranks import World, assert_all_answered, assert_base_line, expected

from vertumnusd.control.answering import Answering
from vertumnusd.control.fleet import Fleet
from vertumnusd.control.lead import Lead
from vertumnusd.messages import Adopted, Converted, Finished, Merge, Parked, Split
from vertumnusd.node.leads import Leads

SCRIPTS = 60
DRAIN_DEADLINE_S, SWITCH_DEADLINE_S = 30.0, 10.0


def submit_four(world: World, tokens: int = 3) -> None:
    for name in "abcd":
        world.submit(name, list(range(ord(name), ord(name) + 14)), tokens)


def assert_answered(world: World, tokens: int = 3) -> None:
    for name in "abcd":
        assert world.tokens(name) == expected(name, tokens)
        assert [type(event) for event in world.endings(name)] == [Finished]
    assert_base_line(world)


def let(world: World, kind: type, rank: int) -> None:
    """Let the rank work and report up to its next message of this kind, which stays unheard."""
    while not (world.ranks[rank].out and isinstance(world.ranks[rank].out[0], kind)):
        assert world.deliver_out(rank) or world.deliver_in(rank), f"no {kind.__name__} comes"


def until(world: World, phase: str) -> None:
    """Let things happen until the one operation is in this phase."""
    for _ in range(1000):
        operations = world.hub.snapshot()["operations"]
        if operations and operations[0]["phase"] == phase:
            return
        for rank in range(5):
            world.deliver_in(rank)
            world.deliver_out(rank)
    raise AssertionError(f"the phase {phase} never comes")


@pytest.mark.parametrize(
    ("composition", "kind", "worker", "after"),
    [
        ("1CP2/2CP1", Split, "CP2[0-1]", ["CP1[0]", "CP1[1]", "CP1[2]", "CP1[3]"]),
        ("1CP2/2CP1", Merge, "CP2[2-3]", ["CP2[0-1]", "CP2[2-3]"]),
    ],
)
def test_workers_are_replaced_under_load_and_every_answer_is_right(
    composition, kind, worker, after
):
    world = World(composition=composition)
    world.settle()
    submit_four(world)
    assert world.convert(kind, worker)
    world.settle()

    (converted,) = world.conversions()
    assert (converted.outcome, converted.phase) == ("exposed", "adopt")
    assert world.workers() == after
    assert_answered(world)


def test_cached_prefixes_survive_a_merge_and_a_split():
    world = World(composition="4CP1")
    world.settle()
    world.submit("a", list(range(16)), 1)
    world.settle()
    home = world.endings("a")[0].worker
    merged = "CP2[0-1]" if home in ("CP1[0]", "CP1[1]") else "CP2[2-3]"
    for n, kind in enumerate((Merge, Split)):
        assert world.convert(kind, merged)
        world.settle()
        world.submit(f"b{n}", [*range(16), 99], 1)
        world.settle()
        assert world.endings(f"b{n}")[0].cached_tokens == 16
        expected_worker = merged if kind is Merge else home
        assert world.endings(f"b{n}")[0].worker == expected_worker


def test_what_runs_ends_in_the_old_geometry_and_what_waits_moves_at_once():
    world = World(composition="2CP2")
    world.settle()
    submit_four(world, 1)
    assert world.convert(Split, "CP2[0-1]")
    waiting = {w["name"]: w["waiting"] for w in world.hub.snapshot()["workers"]}
    assert waiting["CP2[0-1]"] == 0
    world.settle()
    degrees = sorted(world.endings(name)[0].degree for name in "abcd")
    assert degrees[-1] == 2
    assert_answered(world, 1)


@pytest.mark.parametrize("phase", ["drain", "park", "adopt"])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_lost_in_any_phase_rolls_back_or_is_none_of_its_business(phase, rank):
    world = World(composition="2CP2")
    world.settle()
    submit_four(world)
    assert world.convert(Split, "CP2[0-1]")
    until(world, phase)
    world.kill(rank)
    world.settle()

    (converted,) = world.conversions()
    lost = rank == 0
    assert (converted.outcome, converted.phase) == (
        ("rolled back", phase) if lost else ("exposed", "adopt")
    )
    first = ["CP2[0-1]"] if lost else ["CP1[0]", "CP1[1]"]
    assert sorted(world.workers()) == sorted([*first, "CP2[2-3]"])
    assert_answered(world)


@pytest.mark.parametrize("phase", ["drain", "park", "adopt"])
def test_clients_that_leave_in_any_phase_leave_nothing_behind(phase):
    world = World(composition="2CP2")
    world.settle()
    submit_four(world)
    assert world.convert(Split, "CP2[0-1]")
    until(world, phase)
    for name in "abcd":
        world.hub.leave(name)
    world.settle()
    assert [c.outcome for c in world.conversions()] == ["exposed"]
    assert_base_line(world)


@pytest.mark.parametrize(
    ("phase", "deadline_s"),
    [("drain", DRAIN_DEADLINE_S), ("park", SWITCH_DEADLINE_S), ("adopt", SWITCH_DEADLINE_S)],
)
def test_past_its_deadline_an_operation_is_called_off_and_all_goes_on(phase, deadline_s):
    world = World(composition="2CP2")
    world.settle()
    submit_four(world)
    assert world.convert(Split, "CP2[0-1]")
    until(world, phase)
    world.now += deadline_s + 0.1
    world.hub.tick()
    world.settle()

    (converted,) = world.conversions()
    assert (converted.outcome, converted.phase) == ("rolled back", phase)
    key = "drain_deadline_s" if phase == "drain" else "switch_deadline_s"
    assert converted.reason == f"{phase} took too long ({key} = {deadline_s:g})"
    assert sorted(world.workers()) == ["CP2[0-1]", "CP2[2-3]"]
    assert_answered(world)


@pytest.mark.parametrize(("kind", "phase"), [(Parked, "park"), (Adopted, "adopt")])
def test_an_acknowledgement_after_the_rollback_is_late_and_ignored(kind, phase):
    world = World(composition="2CP2")
    world.settle()
    assert world.convert(Split, "CP2[0-1]")
    until(world, phase)
    let(world, kind, 1)
    world.now += SWITCH_DEADLINE_S + 0.1
    world.hub.tick()
    world.settle()
    assert [c.outcome for c in world.conversions()] == ["rolled back"]
    assert sorted(world.workers()) == ["CP2[0-1]", "CP2[2-3]"]
    submit_four(world)
    world.settle()
    assert_answered(world)


def test_disjoint_operations_run_at_once_and_others_are_refused():
    world = World(composition="2CP2")
    world.settle()
    submit_four(world)
    assert world.convert(Split, "CP2[0-1]")
    assert not world.convert(Split, "CP2[0-1]")
    assert not world.convert(Merge, "CP2[0-1]")
    assert world.convert(Split, "CP2[2-3]")
    assert len(world.hub.snapshot()["operations"]) == 2
    world.settle()
    assert world.workers() == [f"CP1[{rank}]" for rank in range(4)]
    assert_answered(world)


def test_requests_wait_while_no_worker_serves():
    world = World(composition="2CP2")
    world.settle()
    for worker in ("CP2[0-1]", "CP2[2-3]"):
        assert world.convert(Split, worker)
    submit_four(world)
    assert world.hub.snapshot()["waiting"]["requests"] == 4
    world.settle()
    assert_answered(world)


def run_script(seed: int) -> None:
    """Random arrivals, departures, conversions, kills, delays; then quiet, and a look around."""
    rng = random.Random(seed)
    home_ranks = rng.choice((1, 2))
    degrees = (2, 4) if home_ranks == 2 else (1, 2)
    large = [f"CP{degrees[1]}[{base}]" for base in range(0, 4, degrees[1])]
    world = World(composition=f"{4 // degrees[0]}CP{degrees[0]}", home_ranks=home_ranks)
    wanted: dict[str, int] = {}
    left: set[str] = set()
    kills = 0
    for _ in range(rng.randrange(200, 800)):
        world.now += rng.random() * rng.choice((0.01, 0.5))
        choice = rng.random()
        if choice < 0.05 and len(wanted) < 25:
            name = f"r{len(wanted)}"
            wanted[name] = rng.choice((0, 1, 2, 5))
            shared = [7] * rng.choice((0, 8, 16, 24))
            tail = [rng.randrange(100) for _ in range(rng.randrange(1, 20))]
            world.submit(name, shared + tail, wanted[name])
        elif choice < 0.06 and wanted:
            left.add(name := rng.choice(sorted(wanted)))
            world.hub.leave(name)
        elif choice < 0.08:
            world.convert(rng.choice((Split, Merge)), rng.choice(large))
        elif choice < 0.083 and kills < 2:
            kills += 1
            world.kill(rng.randrange(5))
        elif choice < 0.1:
            world.hub.tick()
        elif choice < 0.15:
            world.ranks[4].beat()
        elif rng.random() < 0.5:
            world.deliver_in(rng.randrange(5))
        else:
            world.deliver_out(rng.randrange(5))
        assert_geometry(world)
    world.settle()
    assert_all_answered(world, wanted, left)
    assert_base_line(world)
    assert not world.hub.snapshot()["operations"]


def assert_geometry(world: World) -> None:
    """Every rank is in one worker, and all of a worker that serves have adopted it."""
    workers = world.hub.snapshot()["workers"]
    assert sorted(rank for worker in workers for rank in worker["ranks"]) == [0, 1, 2, 3]
    for worker in workers:
        if worker["state"] == "serving":
            adopted = [world.ranks[rank].geometry for rank in worker["ranks"]]
            assert all(a is not None and a.epoch == worker["epoch"] for a in adopted)


def run_all_scripts() -> None:
    for seed in range(SCRIPTS):
        run_script(seed)


@pytest.mark.parametrize("seed", range(SCRIPTS))
def test_random_conversions_answer_everybody_once_and_leak_nothing(seed):
    run_script(seed)


def test_the_scripts_convert():
    """Else they would prove nothing."""
    outcomes = []
    original = World.convert

    def convert(self, kind, worker):
        outcomes.append(original(self, kind, worker))
        return outcomes[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "convert", convert)
        for seed in range(20):
            run_script(seed)
    assert outcomes.count(True) > 20


def keep_the_request_that_a_drain_returns(monkeypatch):
    """Its decode room is never given back."""
    monkeypatch.setattr(Answering, "on_returned", lambda self: [])


def drop_what_a_drain_returns(monkeypatch):
    """The queue of a drained worker is lost."""
    original = Lead.drain

    def drain(self, now, operation, patience_s):
        commands = original(self, now, operation, patience_s)
        return [c for c in commands if type(c).__name__ != "Returned"]

    monkeypatch.setattr(Lead, "drain", drain)


def expose_after_the_first_acknowledgement(monkeypatch):
    """Steps then meet ranks of another geometry."""
    original = Fleet.adopted

    def adopted(self, event):
        standing = self.standings[self.worker_of(event.rank)]
        if (event.term, event.epoch) == (self.term, standing.epoch):
            for worker in standing.together:
                self.standings[worker].adopted.update(worker.ranks)
        return original(self, event)

    monkeypatch.setattr(Fleet, "adopted", adopted)


def keep_the_old_lead(monkeypatch):
    """Answers of the new worker's ranks then go to a lead that is gone."""
    monkeypatch.setattr(Leads, "close", lambda self, worker: None)


@pytest.mark.parametrize(
    "mutant",
    [
        keep_the_request_that_a_drain_returns,
        drop_what_a_drain_returns,
        expose_after_the_first_acknowledgement,
        keep_the_old_lead,
    ],
)
def test_the_scripts_catch_a_broken_conversion(mutant: Callable, monkeypatch):
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KeyError, AttributeError, pytest.fail.Exception)):
        run_all_scripts()


def test_converted_names_both_sides():
    world = World(composition="2CP2")
    world.settle()
    assert world.convert(Split, "CP2[0-1]")
    world.settle()
    (converted,) = world.conversions()
    assert isinstance(converted, Converted)
    assert (converted.before, converted.after) == (("CP2[0-1]",), ("CP1[0]", "CP1[1]"))
