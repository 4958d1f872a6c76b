"""Lanes of a websocket: order, side by side, limits, cancels."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from scripted import House, WebsocketClient, kinds

from vertumnusd.node.keys import Keys


async def collect(client: WebsocketClient, ends: int) -> list[dict[str, Any]]:
    """Events of all lanes until so many responses ended."""
    events: list[dict[str, Any]] = []
    while sum(kind.startswith(("response.completed", "error")) for kind in kinds(events)) < ends:
        events.append(await client.receive())
    return events


async def test_a_lane_is_first_in_first_out(house: House) -> None:
    client = await house.websocket()
    for text in ("a", "bb", "ccc"):
        await client.create(text, stream_id="lane")
    events = await collect(client, 3)
    assert {event["stream_id"] for event in events} == {"lane"}
    assert house.service.most_running == 1
    borders = [kind for kind in kinds(events) if kind in ("response.created", "response.completed")]
    assert borders == ["response.created", "response.completed"] * 3
    lengths = [len(job.tokens) for job in house.service.jobs]
    assert lengths == sorted(lengths)


async def test_lanes_run_side_by_side(house: House) -> None:
    house.service.hold_after = 1
    client = await house.websocket()
    for lane in ("one", "two", None):
        await client.create(**({"stream_id": lane} if lane else {}))
    await house.service.until(lambda: len(house.service.running) == 3)
    house.service.release.set()
    events = await collect(client, 3)
    for lane in ("one", "two", None):
        own = [event for event in events if event.get("stream_id") == lane]
        assert [event["sequence_number"] for event in own] == list(range(len(own)))
        assert kinds(own)[-1] == "response.completed"


async def test_so_many_responses_run_side_by_side_and_the_others_wait(house: House) -> None:
    house.set_up(in_flight_per_connection=2)
    house.service.hold_after = 1
    client = await house.websocket()
    for lane in range(4):
        await client.create(stream_id=f"lane{lane}")
    await house.service.until(lambda: len(house.service.running) == 2)
    await trio.testing.wait_all_tasks_blocked()
    assert len(house.service.jobs) == 2
    house.service.release.set()
    assert len(await collect(client, 4)) > 0
    assert len(house.service.jobs) == 4
    assert house.service.most_running == 2


async def test_lanes_are_limited(house: House) -> None:
    house.set_up(lanes=2)
    house.service.hold_after = 1
    client = await house.websocket()
    for lane in ("a", "b", "c"):
        await client.create(stream_id=lane)
    while (event := await client.receive())["type"] != "error":
        pass
    assert (event["stream_id"], event["status"]) == ("c", 429)
    assert event["error"]["code"] == "websocket_stream_limit_reached"
    assert event["error"]["retry_after"] > 0
    house.service.release.set()
    await collect(client, 2)
    await client.create(stream_id="c")
    assert kinds(await client.response())[-1] == "response.completed"


async def test_waiting_responses_are_limited(house: House) -> None:
    house.set_up(pending_per_connection=3)
    house.service.hold_after = 0
    client = await house.websocket()
    for _ in range(4):
        await client.create()
    event = await client.receive()
    assert (event["type"], event["error"]["code"]) == ("error", "rate_limit_exceeded")


@pytest.mark.parametrize("stream_id", ["", "a b", "x" * 257, "é", "a\n"])
async def test_a_bad_stream_id_is_refused(house: House, stream_id: str) -> None:
    client = await house.websocket()
    await client.create(stream_id=stream_id)
    (error,) = await client.response()
    assert error["error"]["code"] == "invalid_stream_id"
    assert "stream_id" not in error
    assert not house.service.jobs


async def test_a_running_response_is_cancelled_by_its_id(house: House) -> None:
    house.service.hold_after = 3
    client = await house.websocket()
    await client.create()
    events = [await client.receive()]
    while "delta" not in events[-1] or events[-1]["delta"] != "e":
        events.append(await client.receive())
    cancel = {"type": "vertumnus:cancel", "response_id": events[0]["response"]["id"]}
    await client.send(cancel)
    rest = await client.response()
    assert kinds(rest)[-1] == "response.incomplete"
    assert rest[-1]["response"]["incomplete_details"] == {"reason": "cancelled"}
    assert rest[-1]["response"]["output"][0]["content"][0]["text"] == "He"
    assert len(house.service.cancelled) == 1
    numbers = [event["sequence_number"] for event in events + rest]
    assert numbers == list(range(len(numbers)))
    await client.send(cancel)  # a late cancel is ignored
    house.service.release.set()
    await client.create()
    assert kinds(await client.response())[-1] == "response.completed"


async def test_a_cancel_does_not_break_off_an_event_that_is_being_sent(
    house: House, autojump_clock: trio.testing.MockClock
) -> None:
    near, far = trio.testing.lockstep_stream_pair()  # sending waits for the other side to read
    async with trio.open_nursery() as nursery:
        nursery.start_soon(house.doors.serve_stream, far)
        client = WebsocketClient(near)
        assert await client.open() == 101
        await client.create(stream_id="a")
        events = [await client.receive()]
        await trio.testing.wait_all_tasks_blocked()
        await client.send({"type": "vertumnus:cancel", "stream_id": "a"})
        await trio.testing.wait_all_tasks_blocked()
        events += await client.response()
        await client.stream.aclose()
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["response"]["incomplete_details"] == {"reason": "cancelled"}


async def test_a_lane_is_cancelled_with_what_waits_in_it(house: House) -> None:
    house.service.hold_after = 1
    client = await house.websocket()
    for lane in ("a", "a", "b"):
        await client.create(stream_id=lane)
    await house.service.until(lambda: len(house.service.running) == 2)
    await client.send({"type": "vertumnus:cancel", "stream_id": "a"})
    ends = []
    while len(ends) < 2:
        event = await client.receive()
        ends += [event] if event["type"] == "response.incomplete" else []
    assert [event["stream_id"] for event in ends] == ["a", "a"]
    assert len(house.service.jobs) == 2
    house.service.release.set()
    assert (await collect(client, 1))[-1]["stream_id"] == "b"


async def test_leaving_cancels_everything(house: House) -> None:
    house.service.hold_after = 1
    client = await house.websocket()
    for lane in ("a", "a", "b"):
        await client.create(stream_id=lane)
    await house.service.until(lambda: len(house.service.running) == 2)
    await client.stream.aclose()
    await house.service.until(lambda: not house.service.running)
    assert len(house.service.cancelled) == 2
    await house.assert_alive()


async def test_requests_of_a_key_are_limited_over_its_connections(house: House) -> None:
    house.set_up(keys=Keys(frozenset({"sesame"})), in_flight_per_key=1)
    house.service.hold_after = 1
    one = await house.websocket(authorization="Bearer sesame")
    other = await house.websocket(authorization="Bearer sesame")
    await one.create()
    await house.service.until(lambda: bool(house.service.running))
    await other.create()
    (error,) = await other.response()
    assert (error["status"], error["error"]["code"]) == (429, "rate_limit_exceeded")
    house.service.release.set()
    assert kinds(await one.response())[-1] == "response.completed"
