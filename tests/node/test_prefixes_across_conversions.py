"""Chains that splits leave pending, and prefixes kept on several homes: a node over fake ranks."""

from __future__ import annotations

from fake_ranks import BLOCK, World, assert_base_line, expected

from vertumnusd.control.settings import FetchSettings, ReplicationSettings
from vertumnusd.messages import Finished, Installed, Merge, Split

FETCH = FetchSettings(token_s=1e-6, latency_s=1e-3)
PENDING = [*range(30 * BLOCK)]  # more blocks than a rank has
SHARED = PENDING[: 20 * BLOCK]


def counting(world: World) -> list[int]:
    """Blocks that ranks copy from now on; a copy of one counts as a byte."""
    copied: list[int] = []
    heard = world.hub.from_rank

    def hear(message):
        if isinstance(message, Installed):
            copied.append(message.kv_bytes)
        heard(message)

    world.hub.from_rank = hear
    return copied


def ask(world: World, name: str, tokens: list[int]) -> Finished:
    world.submit(name, tokens, 2)
    world.settle()
    (ending,) = world.endings(name)
    assert world.tokens(name) == expected(name, 2)
    return ending


def split_all(world: World) -> None:
    for worker in world.workers():
        assert world.convert(Split, worker)
    world.settle()


def with_a_pending_chain(**settings: object) -> World:
    """Computed on two homes of a worker that is then split."""
    world = World(composition="2CP2", policy="ours", fetch=FETCH, **settings)
    world.settle()
    assert ask(world, "long", [*PENDING, 7]).degree == 2
    split_all(world)
    return world


def test_the_first_reuse_of_a_pending_chain_moves_its_missing_blocks_and_later_ones_none():
    world = with_a_pending_chain()
    copied = counting(world)
    first = ask(world, "first", [*SHARED, 8])
    assert (first.degree, first.cached_tokens) == (1, len(SHARED))
    assert sum(copied) == 10  # every other one is there

    second = ask(world, "second", [*SHARED, 9])
    assert (second.worker, second.cached_tokens) == (first.worker, len(SHARED))
    assert sum(copied) == 10
    assert_base_line(world)


def test_a_pending_chain_that_lost_a_part_is_an_ordinary_miss():
    world = with_a_pending_chain()
    copied = counting(world)
    world.kill(0)
    world.settle()
    world.kill(2)
    world.settle()
    answer = ask(world, "first", [*SHARED, 8])
    assert (answer.cached_tokens, sum(copied)) == (0, 0)
    assert_base_line(world)


def test_a_merge_makes_a_pending_chain_whole_again_without_a_copy():
    world = with_a_pending_chain()
    copied = counting(world)
    for worker in ("CP2[0-1]", "CP2[2-3]"):
        assert world.convert(Merge, worker)
    world.settle()
    assert ask(world, "first", [*PENDING, 8]).cached_tokens == len(PENDING)
    assert sum(copied) == 0


def test_a_hot_prefix_computed_on_a_merged_worker_is_hit_on_all_its_homes_after_a_split():
    hot = ReplicationSettings(enabled=True, scan_s=1000.0, intra_accesses=2.0)
    world = World(composition="4CP1", policy="ours", replication=hot)
    world.settle()
    prefix = PENDING[: 4 * BLOCK]
    home = ask(world, "a", [*prefix, 1]).worker
    for name in "bcd":
        assert ask(world, name, [*prefix, ord(name)]).worker == home
    merged = "CP2[2-3]" if home in ("CP1[0]", "CP1[1]") else "CP2[0-1]"
    assert world.convert(Merge, merged)
    world.settle()
    longer = PENDING[: 14 * BLOCK]  # sooner on two ranks, without its prefix
    copied = counting(world)
    assert ask(world, "e", [*longer, 2]).worker == merged

    assert world.convert(Split, merged)
    world.settle()
    for name in "fg":
        world.submit(name, [*longer, ord(name)], 2)
    world.settle()
    endings = [world.endings(name)[0] for name in "fg"]
    assert len({ending.worker for ending in endings}) == 2
    assert {ending.cached_tokens for ending in endings} == {len(longer)}
    assert copied == []
    assert_base_line(world)
