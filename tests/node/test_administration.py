"""Orders of operators on a whole node of fake ranks, and what the node remembers to explain."""

import msgspec
import pytest
import trio
from fake_ranks import World, assert_base_line, expected

from vertumnusd.explain import explain
from vertumnusd.messages import Decided, Held, Split
from vertumnusd.node.administration import Administration
from vertumnusd.node.errors import RequestError
from vertumnusd.node.records import REQUESTS, Records


class Node:
    def __init__(self) -> None:
        self.world = World(composition="2CP2")
        self.world.settle()
        self.world.records = self.records = Records(lambda: self.world.now)
        self.administration = Administration(self.world.hub, self.records, (1, 2))
        self.world.hear += [self.administration.report, self.records.report]

    def states(self) -> dict[str, str]:
        return {w["name"]: w["state"] for w in self.world.hub.snapshot()["workers"]}


@pytest.fixture
def node() -> Node:
    return Node()


async def test_a_conversion_is_waited_for(node: Node, nursery: trio.Nursery) -> None:
    endings = []

    async def convert() -> None:
        endings.extend(await node.administration.convert("split", ["CP2[0-1]"]))

    nursery.start_soon(convert)
    await trio.testing.wait_all_tasks_blocked()
    assert endings == []
    node.world.settle()
    await trio.testing.wait_all_tasks_blocked()
    assert [ending["outcome"] for ending in endings] == ["exposed"]


async def test_a_drain_waits_for_what_runs_and_then_stays(
    node: Node, nursery: trio.Nursery
) -> None:
    node.world.submit("a", list(range(10)), 3)
    drained = []

    async def drain() -> None:
        drained.extend(await node.administration.drain(["all"]))

    nursery.start_soon(drain)
    await trio.testing.wait_all_tasks_blocked()
    assert drained == []
    node.world.settle()
    await trio.testing.wait_all_tasks_blocked()
    assert [ending["worker"] for ending in drained] == ["CP2[0-1]", "CP2[2-3]"]
    assert not node.world.hub.takes_work()

    node.world.submit("b", list(range(50, 60)), 3)
    node.world.settle()
    assert not node.world.endings("b")
    assert node.administration.undrain(["all"]) == ["CP2[0-1]", "CP2[2-3]"]
    node.world.settle()
    assert node.world.tokens("b") == expected("b", 3)
    assert_base_line(node.world)


async def test_a_drain_that_is_given_back_ends(node: Node, nursery: trio.Nursery) -> None:
    node.world.submit("a", list(range(10)), 3)
    ended = []

    async def drain() -> None:
        ended.extend(await node.administration.drain(["CP2[0-1]"]))

    nursery.start_soon(drain)
    await trio.testing.wait_all_tasks_blocked()
    node.administration.undrain(["CP2[0-1]"])
    await trio.testing.wait_all_tasks_blocked()
    assert [ending["type"] for ending in ended] == ["Resume"]


@pytest.mark.parametrize(
    ("kind", "workers", "reason"),
    [
        ("split", [], "at least one"),
        ("split", ["CP1[0]"], "there are CP2[0-1] CP2[2-3]"),
        ("merge", ["CP2[0-1]"], "largest degree"),
        ("drain", ["CP9[0-8]"], "there are CP2[0-1] CP2[2-3]"),
    ],
)
def test_what_cannot_be_done_is_said_beforehand(node: Node, kind, workers, reason) -> None:
    with pytest.raises(RequestError) as refusal:
        node.administration.plan(kind, workers)
    assert reason in refusal.value.message


async def test_an_order_is_carried_out_whole_or_not_at_all(node: Node) -> None:
    with pytest.raises(RequestError, match=r"CP1\[0\]"):
        await node.administration.convert("split", ["CP2[0-1]", "CP1[0]"])
    assert node.states() == {"CP2[0-1]": "serving", "CP2[2-3]": "serving"}


def test_undraining_what_is_not_drained_is_refused(node: Node) -> None:
    with pytest.raises(RequestError, match="not drained"):
        node.administration.undrain(["CP2[0-1]"])
    assert node.administration.undrain(["all"]) == []


def test_why_tells_the_terms_of_a_request(node: Node) -> None:
    node.world.submit("cmpl-1-0", list(range(10)), 3)
    node.world.settle()
    entries = node.administration.why("cmpl-1")
    assert [entry["type"] for entry in entries] == ["Placed", "Dispatch", "Finished"]
    text = "\n".join(explain(entries))
    assert "placed on CP2[0-1]: J = 0.060 s" in text  # 0.01 + 10 tokens · 0.01 s / 2 ranks
    assert "finished (length): 3 tokens" in text


def test_why_tells_what_a_placement_was_compared_with(node: Node) -> None:
    assert node.world.convert(Split, "CP2[0-1]")
    node.world.settle()
    node.world.submit("cmpl-2-0", list(range(10)), 3)
    node.world.settle()
    text = "\n".join(explain(node.administration.why("cmpl-2")))
    assert "placed on CP2[2-3]: J = 0.060 s" in text
    assert "beside CP1[0], 0 cached: J = at least 0.110" in text  # 0.01 + 10 tokens · 0.01 s


def test_why_says_that_no_worker_served_when_it_was_decided() -> None:
    decided = Decided(3, "stay", "stay", "steady", 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, "")
    lines = explain([{"type": "Decided", "at_s": 1.0, **msgspec.to_builtins(decided)}])
    assert "demand 0.00 s of 0.00 s capacity (no worker serves)" in lines[1]


def test_why_tells_who_began_a_reconfiguration(node: Node) -> None:
    assert node.administration.why("last-reconfiguration") == []
    assert node.world.convert(Split, "CP2[0-1]")
    node.world.settle()
    lines = explain(node.administration.why("last-reconfiguration"))
    assert "split CP2[0-1] → CP1[0] CP1[1], ordered by hand" in lines[0]
    assert "CP1[0] CP1[1] serve" in lines[1]


def test_why_of_the_unknown_says_what_can_be_asked(node: Node) -> None:
    with pytest.raises(RequestError, match="last-reconfiguration"):
        node.administration.why("nobody")


def test_records_are_bounded(node: Node) -> None:
    node.world.submit("first", list(range(10)), 0)
    node.world.settle()
    placed = node.world.answers["first"][0]
    for n in range(REQUESTS):
        node.records.report(type(placed)(**{**_fields(placed), "request": f"r{n}"}))
    assert node.records.request("first") == []
    assert len(node.records.request("r0")) == 1


def _fields(message) -> dict:
    return {name: getattr(message, name) for name in message.__struct_fields__}


async def audit(node: Node, nursery: trio.Nursery) -> list[dict]:
    found: list[dict] = []

    async def ask() -> None:
        found.extend(await node.administration.audit())

    nursery.start_soon(ask)
    await trio.testing.wait_all_tasks_blocked()
    node.world.settle()
    await trio.testing.wait_all_tasks_blocked()
    return found


async def test_an_audit_of_a_quiet_node_is_exact(node: Node, nursery: trio.Nursery) -> None:
    for n in range(4):
        node.world.submit(f"r{n}", [n, *range(20)], 1)
    node.world.settle()
    found = await audit(node, nursery)
    assert [entry["rank"] for entry in found] == [0, 1, 2, 3]
    assert sum(entry["held_blocks"] for entry in found) == 20
    assert all(entry["wrong_blocks"] == entry["unknown_blocks"] == 0 for entry in found)


async def test_an_audit_tells_what_the_trie_missed_and_corrects_it(
    node: Node, nursery: trio.Nursery
) -> None:
    node.world.submit("a", list(range(21)), 1)
    node.world.settle()
    (rank,) = [r for r in range(4) if node.world.ranks[r].cache._table.cached_blocks]
    node.world.hub._controller._scheduler.matching.trie.drop_rank(rank)

    assert (await audit(node, nursery))[rank]["unknown_blocks"] == 5
    assert (await audit(node, nursery))[rank]["unknown_blocks"] == 0


async def test_a_rank_that_does_not_answer_an_audit_is_named(
    node: Node, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    found = await node.administration.audit()
    assert [entry["answered"] for entry in found] == [False] * 4


def test_a_prefix_is_reclaimed_where_it_lies(node: Node) -> None:
    node.world.submit("a", list(range(10)), 3)
    node.world.settle()
    (block, *_) = max(node.world.hub.reclaims(b"").items(), key=lambda item: len(item[1][0].blocks))
    name = block.hex()[:8]
    (planned,) = node.administration.reclaim(name, [], dry_run=True)
    assert planned["blocks"] > 0
    assert node.administration.reclaim(name, [planned["home"]], dry_run=False) == [planned]
    node.world.settle()
    with pytest.raises(RequestError, match="no home holds"):
        node.administration.reclaim(name, [], dry_run=True)
    assert_base_line(node.world)


@pytest.mark.parametrize(
    ("prefix", "homes", "reason"),
    [("", [], "hexadecimal"), ("xyzxyzxy", [], "hexadecimal"), ("0" * 8, [], "no home holds")],
)
def test_a_prefix_that_is_none_is_refused(node: Node, prefix, homes, reason) -> None:
    with pytest.raises(RequestError, match=reason):
        node.administration.reclaim(prefix, homes, dry_run=False)


def test_a_home_that_does_not_hold_a_prefix_is_told_those_that_do(node: Node) -> None:
    node.world.submit("a", list(range(10)), 3)
    node.world.settle()
    (block, (reclaim, *_)) = next(iter(node.world.hub.reclaims(b"").items()))
    with pytest.raises(RequestError, match=f"homes {reclaim.home} do"):
        node.administration.reclaim(block.hex(), [99], dry_run=True)


def test_a_hold_tells_who_and_until_when(node: Node) -> None:
    told: list[object] = []
    node.world.hear.append(told.append)
    node.administration.hold(60.0, "ann on ops-1")
    node.administration.hold(0.0, "bob")
    assert told == [Held(60.0, "ann on ops-1"), Held(0.0, "bob")]
