"""A prefix comes to the degree where requests would rather be, by itself: a node on fake ranks."""

from __future__ import annotations

from fake_ranks import BLOCK, World, assert_base_line, expected

from vertumnusd.control.settings import ReplicationSettings
from vertumnusd.messages import Finished, Hold, Replicate, Replicated

SCAN_S = 10.0
COPYING = ReplicationSettings(enabled=True, scan_s=SCAN_S, inter_missed_s=0.01, intra_accesses=1e6)
PREFIX = [*range(4 * BLOCK)]


def ask(world: World, *asked: tuple[str, list[int]]) -> list[Finished]:
    """All at once; the first ones are placed first."""
    for name, tokens in asked:
        world.submit(name, tokens, 2)
    world.settle()
    for name, _ in asked:
        assert world.tokens(name) == expected(name, 2)
    return [ending for name, _ in asked for ending in world.endings(name)]


def fresh(first: int, blocks: int) -> list[int]:
    return [*range(first, first + blocks * BLOCK)]


def wanted_at_degree_2() -> World:
    """Prefixes of degree 1 that requests would rather use at degree 2, which has too much to do."""
    world = World(composition="1CP2/2CP1", replication=COPYING)
    world.settle()
    large, small = ask(world, ("x", fresh(1000, 16)), ("a", [*PREFIX, 1]))
    assert (large.degree, small.degree) == (2, 1)
    _, reuse = ask(world, ("y", fresh(2000, 16)), ("b", [*PREFIX, *fresh(3000, 8)]))
    assert (reuse.degree, reuse.cached_tokens) == (1, len(PREFIX))
    return world


def scan(world: World) -> list[Replicate]:
    """What is copied at the next scan."""
    before = len(world.reports)
    world.now += SCAN_S
    world.hub.tick()
    world.settle()
    return [report for report in world.reports[before:] if isinstance(report, Replicate)]


def test_a_prefix_is_copied_to_the_degree_where_requests_would_rather_use_it():
    world = wanted_at_degree_2()
    (copy,) = scan(world)
    assert copy.kind == "inter"
    assert Replicated(copy.transfer) in world.reports
    (answer,) = ask(world, ("c", [*PREFIX, *fresh(4000, 8)]))
    assert (answer.degree, answer.cached_tokens) == (2, len(PREFIX))
    assert_base_line(world)


def test_while_somebody_holds_the_controller_nothing_is_copied_by_itself():
    world = wanted_at_degree_2()
    world.hub.command(Hold(1.5 * SCAN_S, "ann"))
    assert scan(world) == []
    assert [copy.kind for copy in scan(world)] == ["inter"]
