"""The feed of consoles: a snapshot, then what changes, and nobody waits for a slow reader."""

import json
import os
import socket
import stat

import pytest
import trio
from scripted import WebsocketClient

from vertumnusd.messages import ENTRY_NAMES, Abort, Placed, RankDown
from vertumnusd.node.admin import AdminSocketError, AdminToken, admin_listener
from vertumnusd.node.feed import BUFFERED_FRAMES, INTERVAL_S, Feed, difference
from vertumnusd.node.keys import Keys

PLACED = Placed(1, 1, "a", "CP2[0-1]", 2, 2, 100, 20, 0.25, 0.5, 0.0, 0.75)
DOWN = RankDown(3, "prefill", "killed")


def apply(cluster, changed, entries):
    """What a console does with a delta."""
    cluster = {**cluster, **changed}
    for key, changes in entries.items():
        name = ENTRY_NAMES[key]
        put = {entry[name]: entry for entry in changes.put}
        gone = {*changes.drop, *put}
        cluster[key] = [e for e in cluster[key] if e[name] not in gone] + list(put.values())
    return cluster


def by_name(cluster):
    return {
        key: sorted(value, key=lambda e: str(e[ENTRY_NAMES[key]])) if key in ENTRY_NAMES else value
        for key, value in cluster.items()
    }


def test_the_difference_leads_from_one_picture_to_the_next():
    before = {
        "epoch": 1,
        "workers": [{"name": "a", "q": 1}, {"name": "b", "q": 2}],
        "slo": {"x": 1},
    }
    after = {"epoch": 2, "workers": [{"name": "b", "q": 3}, {"name": "c", "q": 0}], "slo": {"x": 1}}
    changed, entries = difference(before, after)
    assert by_name(apply(before, changed, entries)) == by_name(after)
    assert changed == {"epoch": 2}


def test_what_did_not_change_is_not_sent():
    cluster = {"epoch": 1, "workers": [{"name": "a", "q": 1}]}
    assert difference(cluster, {"epoch": 1, "workers": [{"name": "a", "q": 1}]}) == ({}, {})


@pytest.fixture
def pictures():
    return {"epoch": 1, "workers": [{"name": "a", "q": 1}]}


@pytest.fixture
def feed(pictures):
    return Feed(lambda: json.loads(json.dumps(pictures)), trio.current_time, lambda: 1000.0)


async def test_a_console_gets_the_picture_then_changes_and_events(feed, pictures, nursery):
    feed.happened(DOWN)
    nursery.start_soon(feed.run)
    with feed.watch() as frames:
        first = json.loads(await frames.receive())
        pictures["epoch"] = 2
        feed.happened(PLACED)
        second = json.loads(await frames.receive())
    assert (first["type"], first["cluster"]["epoch"], first["wall_s"]) == ("snapshot", 1, 1000.0)
    assert [event["type"] for event in first["events"]] == ["RankDown"]
    assert (second["type"], second["seq"]) == ("delta", first["seq"] + 1)
    assert second["changed"] == {"epoch": 2}
    assert [event["type"] for event in second["events"]] == ["Placed"]


async def test_two_consoles_see_the_same_sequence(feed, pictures, nursery, autojump_clock):
    nursery.start_soon(feed.run)
    with feed.watch() as one:
        await one.receive()
        pictures["epoch"] = 2
        with feed.watch() as other:
            snapshot = json.loads(await other.receive())
            delta = json.loads(await one.receive())
            assert snapshot["seq"] == delta["seq"]
            assert snapshot["cluster"]["epoch"] == delta["changed"]["epoch"] == 2
            assert await one.receive() == await other.receive()


async def test_events_of_no_interest_are_left_out(feed, nursery):
    nursery.start_soon(feed.run)
    with feed.watch() as frames:
        await frames.receive()
        feed.happened(Abort("a", "CP1[0]"))
        assert "events" not in json.loads(await frames.receive())


async def test_of_too_many_events_the_first_are_counted_and_left_out(feed, nursery):
    nursery.start_soon(feed.run)
    with feed.watch() as frames:
        await frames.receive()
        for _ in range(2_100):
            feed.happened(PLACED)
        delta = json.loads(await frames.receive())
    assert (len(delta["events"]), delta["events_lost"]) == (2_000, 100)


async def test_who_does_not_read_is_let_go(feed, nursery, autojump_clock):
    nursery.start_soon(feed.run)
    with feed.watch() as slow:
        await trio.sleep(INTERVAL_S * (BUFFERED_FRAMES + 2))
        assert len([frame async for frame in slow]) == BUFFERED_FRAMES  # and then it ends


async def test_nothing_is_computed_while_nobody_watches(nursery, autojump_clock):
    asked = []
    feed = Feed(lambda: asked.append(1) or {}, trio.current_time, lambda: 0.0)
    nursery.start_soon(feed.run)
    with feed.watch():
        await trio.sleep(1)
    await trio.sleep(1)
    seen = len(asked)
    await trio.sleep(10)
    assert seen > 1
    assert len(asked) == seen


async def test_through_the_admin_socket_nothing_is_asked(house, nursery):
    house.set_up(keys=Keys(frozenset({"secret"})))
    console = WebsocketClient(house.connect(trusted=True).stream)
    assert await console.open("/v1/admin/feed") == 101
    assert (await console.receive())["type"] == "snapshot"


@pytest.mark.parametrize(
    ("token", "authorization", "status"),
    [
        ("", "Bearer x", 401),
        ("", "", 401),
        ("right", "", 401),
        ("right", "Bearer wrong", 401),
        ("right", "Basic right", 401),
        ("right", "Bearer right", 101),
    ],
)
async def test_over_tcp_the_admin_token_is_asked_for(house, token, authorization, status):
    house.set_up(admin_token=token)
    console = WebsocketClient(house.connect().stream)
    assert await console.open("/v1/admin/feed", authorization=authorization) == status


async def test_an_api_key_is_no_admin_token(house):
    house.set_up(keys=Keys(frozenset({"secret"})), admin_token="right")
    console = WebsocketClient(house.connect().stream)
    assert await console.open("/v1/admin/feed", authorization="Bearer secret") == 401


async def test_a_console_that_does_not_read_is_closed_with_1013(house, nursery, autojump_clock):
    nursery.start_soon(house.feed.run)
    console = WebsocketClient(house.connect(trusted=True).stream)
    await console.open("/v1/admin/feed")
    await console.receive()
    reader = next(iter(house.feed._readers))
    for _ in range(BUFFERED_FRAMES + 2):  # its session has one in its hands
        house.feed._publish()
    assert reader not in house.feed._readers
    assert await console.closed() == 1013


async def test_a_watched_node_drains_to_its_end(house, nursery, autojump_clock):
    console = WebsocketClient(house.connect(trusted=True).stream)
    await console.open("/v1/admin/feed")
    with trio.fail_after(5):
        await house.doors.drain()


def test_a_token_file_needs_a_token(tmp_path):
    file = tmp_path / "token"
    file.write_text(" \n")
    with pytest.raises(ValueError, match="no token"):
        AdminToken.load(file)


async def test_the_admin_socket_is_its_owners_alone(tmp_path):
    path = tmp_path / "run" / "admin.sock"
    with admin_listener(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.exists()


async def test_a_socket_left_behind_is_replaced_a_living_one_is_not(tmp_path):
    path = tmp_path / "admin.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    with (
        admin_listener(path),
        pytest.raises(AdminSocketError, match="another node"),
        admin_listener(path),
    ):
        pass
    assert not path.exists()


async def test_another_file_in_its_place_is_left_alone(tmp_path):
    path = tmp_path / "admin.sock"
    path.write_text("mine")
    with pytest.raises(AdminSocketError, match="another file"), admin_listener(path):
        pass
    assert path.read_text() == "mine"
    assert os.listdir(tmp_path) == ["admin.sock"]
