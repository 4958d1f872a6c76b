"""Thousands of transfers with everything going wrong, on real caches and a real coordinator.

The mutants show that the storm would notice: each takes one rule away, and must be caught.
"""

from __future__ import annotations

import random

import pytest
from transfer_world import World, chain_of

from vertumnusd.control import transfer as coordinator
from vertumnusd.control.transfer import Phase, delete
from vertumnusd.messages import (
    HASH_BYTES,
    Reclaim,
    Replicate,
    Replicated,
    TransferFailed,
    Unpin,
)
from vertumnusd.rank import transfer as rank_side
from vertumnusd.rank.blocks import BlockTable

SPANS = [(base, width) for width in (1, 2, 4) for base in range(0, 4, width)]
CHAINS = [chain_of(text) for text in ("abcdef", "abcdxy", "abk", "pqrstuvw", "pq", "z")]


def storm(seed: int, events: int = 3_000) -> World:
    """Prefills, copies, aborts, evictions, reclaims and deaths, in a random order."""
    dice, world, started = random.Random(seed), World(), 0
    for number in range(events):
        draw = dice.random()
        if draw < 0.05:
            started += 1
            world.start(replicate(dice, started))
        elif draw < 0.08 and started:
            world.act(world.coordinator.cancel(1, dice.randint(max(1, started - 6), started)))
        elif draw < 0.082:
            world.now += 10.0
            world.act(world.coordinator.tick(world.now))
        elif draw < 0.086:
            world.kill(dice.randrange(4))
        elif draw < 0.096:
            reclaim(dice, world)
        elif draw < 0.12 and len(world.prefills) < 2:
            world.reserve(f"r{number}", dice.choice(CHAINS), *dice.choice(SPANS))
        elif draw < 0.15 and world.prefills:
            end_prefill(dice, world)
        else:
            world.some_event(dice)
        world.check()
    for request in list(world.prefills):
        world.release(request)
    world.settle()
    world.check()
    world.check_at_rest()
    return world


def replicate(dice: random.Random, number: int) -> Replicate:
    (source, wide), (destination, width) = dice.choice(SPANS), dice.choice(SPANS)
    chain, kind = dice.choice(CHAINS), dice.choice(["intra", "fetch"])
    return Replicate(1, number, kind, chain, 0, source, destination, 30.0, wide, width)


def end_prefill(dice: random.Random, world: World) -> None:
    request = dice.choice(list(world.prefills))
    world.publish(request)
    if dice.random() < 0.8:
        world.release(request)


def reclaim(dice: random.Random, world: World) -> None:
    chain, home = dice.choice(CHAINS), dice.randrange(4)
    version = world.ranks[home].cache._table.version
    backwards = b"".join(chain[at - HASH_BYTES : at] for at in range(len(chain), 0, -HASH_BYTES))
    world.act(delete(Reclaim(1, home, backwards, (version,))))


@pytest.mark.parametrize("seed", range(12))
def test_a_storm_of_aborts_mixes_nothing_up_and_leaves_nothing(seed: int) -> None:
    storm(seed)


def test_the_storm_sees_every_end() -> None:
    worlds = [storm(seed) for seed in (100, 101, 102)]
    answers = [answer for world in worlds for (answer,) in world.answers.values()]
    reasons = {a.reason.rstrip("0123456789") for a in answers if isinstance(a, TransferFailed)}
    assert sum(isinstance(answer, Replicated) for answer in answers) > 50
    assert {"cancelled"} < {reason.split(" ")[0] for reason in reasons}
    assert any("lost" in reason for reason in reasons)
    assert any("not at the source" in reason for reason in reasons)
    assert any("room" in reason for reason in reasons)


def caught() -> bool:
    for seed in range(12):
        try:
            storm(seed)
        except Exception:
            return True
    return False


def test_freeing_what_is_still_written_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_side._Incoming, "copying", property(lambda self: False))
    assert caught()


def test_unpinning_the_source_too_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    install = coordinator.Transfers._install

    def hasty(self: coordinator.Transfers, transfer: coordinator._Transfer) -> list:
        name = (transfer.command.term, transfer.command.transfer)
        return [*transfer.send(transfer.source, Unpin(*name)), *install(self, transfer)]

    monkeypatch.setattr(coordinator.Transfers, "_install", hasty)
    assert caught()


def test_never_unpinning_the_source_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = rank_side.Transfers.receive

    def keep(self: rank_side.Transfers, message: rank_side.TransferMessage) -> None:
        if not isinstance(message, Unpin):
            receive(self, message)

    monkeypatch.setattr(rank_side.Transfers, "receive", keep)
    assert caught()


def test_publishing_before_all_is_installed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def hasty(self: rank_side.Transfers, publish: rank_side.Publish) -> None:
        self._cache.publish_copy(rank_side.Destination(publish.term, publish.transfer))

    advance = coordinator.Transfers._advance

    def early(self: coordinator.Transfers, transfer: coordinator._Transfer) -> list:
        if transfer.phase is Phase.GATHERING:
            transfer.phase = Phase.INSTALLING
        return advance(self, transfer)

    monkeypatch.setattr(rank_side.Transfers, "_publish", hasty)
    monkeypatch.setattr(coordinator.Transfers, "_advance", early)
    assert caught()


def test_forgetting_a_lost_rank_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator.Transfers, "_lose", lambda self, transfer, gone: [])
    assert caught()


def test_evicting_what_is_pinned_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def pin(table: BlockTable, name: object, chain: bytes) -> dict[int, int]:
        pinned = original(table, name, chain)
        table.release(name)
        return pinned

    original = BlockTable.pin
    monkeypatch.setattr(BlockTable, "pin", pin)
    assert caught()
