"""A hold begins, ends early or by itself, and says so each time."""

from vertumnusd.control.holding import Holding
from vertumnusd.messages import Held, Hold

ANN = "ann on ops-1"


def test_a_hold_is_told_when_it_begins_and_when_time_ends_it():
    holding = Holding()
    assert holding.hold(10.0, Hold(20.0, ANN)) == [Held(20.0, ANN)]
    assert holding.snapshot(15.0) == {"held_until": 30.0, "held_by": ANN}
    assert (holding.is_on(29.9), holding.tick(29.9), holding.next_deadline()) == (True, [], 30.0)
    assert not holding.is_on(30.0)
    assert holding.tick(31.0) == [Held(0.0)]
    assert (holding.tick(32.0), holding.next_deadline()) == ([], None)
    assert holding.snapshot(32.0) == {"held_until": None, "held_by": ""}


def test_a_hold_is_ended_early_and_only_once():
    holding = Holding()
    holding.hold(0.0, Hold(20.0, ANN))
    assert holding.hold(5.0, Hold(0.0, "bob")) == [Held(0.0, "bob")]
    assert holding.hold(6.0, Hold(0.0, "bob")) == []
    assert holding.tick(30.0) == []


def test_a_later_hold_takes_the_place_of_the_first():
    holding = Holding()
    holding.hold(0.0, Hold(20.0, ANN))
    assert holding.hold(5.0, Hold(5.0, "bob")) == [Held(5.0, "bob")]
    assert holding.tick(10.0) == [Held(0.0)]
