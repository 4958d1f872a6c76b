"""Workers, compositions, and who serves."""

from __future__ import annotations

import pytest

from vertumnusd.control.errors import IllegalEvent
from vertumnusd.control.fleet import (
    Fleet,
    Worker,
    WorkerState,
    composition_name,
    lattice,
    parse_composition,
)
from vertumnusd.messages import Adopted, AdoptWorker, Exposed, Withdrawn

PAIR = Worker(2, 0)
SINGLE = Worker(1, 2)


def test_workers_are_named_by_degree_and_ranks():
    assert Worker(4, 0).name == "CP4[0-3]"
    assert Worker(1, 2).name == "CP1[2]"


def test_a_worker_contains_whole_homes():
    assert list(Worker(4, 8).homes(2)) == [8, 10]
    assert list(Worker(1, 3).homes(1)) == [3]


def test_the_lattice_has_the_aligned_sets_of_each_degree():
    names = [worker.name for worker in lattice((1, 2, 4), 4)]
    assert names == ["CP1[0]", "CP1[1]", "CP1[2]", "CP1[3]", "CP2[0-1]", "CP2[2-3]", "CP4[0-3]"]


def test_a_composition_lies_on_the_lattice_largest_first():
    workers = parse_composition("2CP1/1CP4/1CP2", (1, 2, 4), 8)
    assert workers == (Worker(4, 0), Worker(2, 4), Worker(1, 6), Worker(1, 7))
    assert set(workers) <= set(lattice((1, 2, 4), 8))


def test_a_composition_keeps_its_name():
    for name in ("1CP2/2CP1", "6CP4", "1CP8/2CP4"):
        ranks = {"1CP2/2CP1": 4, "6CP4": 24, "1CP8/2CP4": 16}[name]
        assert composition_name(parse_composition(name, (1, 2, 4, 8), ranks)) == name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is not like 2CP4"),
        ("2CP", "'2CP' is not like 2CP4"),
        ("0CP2", "'0CP2' is not like 2CP4"),
        ("1CP3/1CP1", "no degree 3; degrees are 1, 2, 4"),
        ("1CP2", r"uses 2 ranks of 4: its degrees \(1, 2, 4\) must sum up to 4"),
        ("2CP4", "uses 8 ranks of 4"),
    ],
)
def test_a_bad_composition_is_refused_with_what_is_allowed(text, said):
    with pytest.raises(ValueError, match=said):
        parse_composition(text, (1, 2, 4), 4)


def test_a_worker_is_adopted_when_all_its_ranks_are_up_and_serves_when_all_adopted():
    fleet = Fleet([PAIR])
    fleet.seat(7)
    assert fleet.rank_up(0) == []
    assert fleet.rank_up(1) == [AdoptWorker(term=7, epoch=1, degree=2, base=0)]
    assert fleet.adopted(Adopted(0, 7, 1, 2)) == []
    assert fleet.adopted(Adopted(0, 7, 1, 2)) == []  # repeated
    assert fleet.adopted(Adopted(1, 7, 1, 2)) == [Exposed(7, 1, "CP2[0-1]", 2, 0)]
    assert fleet.standings[PAIR].state is WorkerState.SERVING


def test_ranks_that_were_up_before_the_seat_was_taken_are_adopted_then():
    fleet = Fleet([PAIR, SINGLE])
    for rank in (0, 1, 2):
        assert fleet.rank_up(rank) == []
    assert [command.epoch for command in fleet.seat(1)] == [1, 2]


def test_a_lost_rank_withdraws_its_worker_and_comes_back_under_a_new_epoch():
    fleet = serving(Fleet([PAIR, SINGLE]))
    assert fleet.rank_down(0, "killed") == [Withdrawn(1, 1, "CP2[0-1]", "killed")]
    assert fleet.standings[SINGLE].state is WorkerState.SERVING
    assert fleet.rank_up(0) == [AdoptWorker(1, 3, 2, 0)]


def test_a_rank_lost_during_adoption_stops_it_without_a_withdrawal():
    fleet = Fleet([PAIR])
    fleet.seat(1)
    for rank in PAIR.ranks:
        fleet.rank_up(rank)
    assert fleet.rank_down(1, "killed") == []
    assert fleet.adopted(Adopted(0, 1, 1, 2)) == []
    assert fleet.standings[PAIR].state is WorkerState.WITHDRAWN


def test_an_acknowledgement_of_another_epoch_or_term_is_late():
    fleet = serving(Fleet([PAIR]))
    fleet.rank_down(0, "killed")
    fleet.rank_up(0)  # epoch 2
    for rank in PAIR.ranks:
        assert fleet.adopted(Adopted(rank, 1, 1, 2)) == []
        assert fleet.adopted(Adopted(rank, 0, 2, 2)) == []
    assert fleet.standings[PAIR].state is WorkerState.ADOPTING


def test_adopting_another_degree_than_commanded_is_illegal():
    fleet = Fleet([SINGLE])
    fleet.seat(1)
    fleet.rank_up(2)
    with pytest.raises(IllegalEvent, match="degree 4 for CP1"):
        fleet.adopted(Adopted(2, 1, 1, 4))


def test_a_second_term_is_illegal_and_a_repeated_one_ignored():
    fleet = serving(Fleet([SINGLE]))
    assert fleet.seat(1) == []
    with pytest.raises(IllegalEvent, match="term 2 during term 1"):
        fleet.seat(2)
    assert fleet.term == 1


def serving(fleet: Fleet) -> Fleet:
    fleet.seat(1)
    for worker in fleet.standings:
        for rank in worker.ranks:
            for command in fleet.rank_up(rank):
                for member in worker.ranks:
                    fleet.adopted(Adopted(member, 1, command.epoch, worker.degree))
    return fleet
