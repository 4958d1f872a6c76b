"""The websocket mode of /v1/responses: events, lanes, memory, cancels, closing."""

from __future__ import annotations

import pytest
import trio
from scripted import STOP, House, WebsocketClient, failing, ids, kinds, saying
from wsproto.events import Ping, Pong

from vertumnusd.messages import Failed
from vertumnusd.node.keys import Keys


async def test_a_response_has_its_events_in_order(house: House) -> None:
    client = await house.websocket()
    await client.create("hi", model="tiny", store=False, metadata={"a": "b"})
    events = await client.response()
    assert kinds(events) == [
        "response.created",
        "response.in_progress",
        "vertumnus:placement",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 5,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert "".join(event.get("delta", "") for event in events) == "Hello"
    response = events[-1]["response"]
    assert response["output"][0]["content"][0]["text"] == "Hello"
    assert response["usage"]["input_tokens_details"]["cached_tokens"] == 4
    assert response["usage"]["output_tokens"] == 6
    assert response["metadata"] == {"a": "b"}
    assert response["vertumnus"]["worker"] == "CP2[0-1]"
    assert events[2]["placement"]["cost_s"] == 0.75
    assert not any("stream_id" in event for event in events)


async def test_a_maximum_makes_a_response_incomplete(house: House) -> None:
    client = await house.websocket()
    await client.create(max_output_tokens=3)
    response = (await client.response())[-1]["response"]
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"


async def test_generate_false_prefills_and_says_nothing(house: House) -> None:
    client = await house.websocket()
    await client.create(generate=False)
    events = await client.response()
    assert kinds(events)[-2:] == ["vertumnus:placement", "response.completed"]
    assert events[-1]["response"]["output"] == []
    assert house.service.jobs[0].max_new_tokens == 0


async def test_a_response_without_a_word_is_still_a_message(house: House) -> None:
    house.service.script = saying("")
    client = await house.websocket()
    await client.create()
    events = await client.response()
    assert "response.output_item.added" in kinds(events)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == ""


async def test_tokens_arrive_when_they_exist(house: House) -> None:
    house.service.hold_after = 3
    client = await house.websocket()
    await client.create()
    deltas = []
    while len(deltas) < 2:
        event = await client.receive()
        deltas += [event["delta"]] if "delta" in event else []
    assert deltas == ["H", "e"]


async def test_a_conversation_goes_on_from_a_remembered_response(house: House) -> None:
    client = await house.websocket()
    await client.create("hi")
    first = (await client.response())[-1]["response"]["id"]
    await client.create("more", previous_response_id=first)
    second = (await client.response())[-1]["response"]
    assert second["previous_response_id"] == first
    start = STOP - 1
    turns = [("user", "hi"), ("assistant", "Hello"), ("user", "more")]
    expected = [t for role, text in turns for t in (start, *ids(f"{role}\n{text}"), STOP, 10)]
    newline = ids("\n")[0]
    expected = [newline if token == 10 else token for token in expected]
    assert house.service.jobs[1].tokens == [*expected, start, *ids("assistant\n")]


async def test_instructions_are_of_one_request_only(house: House) -> None:
    client = await house.websocket()
    await client.create("hi", instructions="Be brief.")
    first = (await client.response())[-1]["response"]["id"]
    await client.create("more", previous_response_id=first)
    await client.response()
    texts = [house.doors._gate.tokens.decode(job.tokens) for job in house.service.jobs]
    assert "system\nBe brief." in texts[0]
    assert "Be brief." not in texts[1]


async def test_a_prefilled_prompt_can_be_gone_on_from(house: House) -> None:
    client = await house.websocket()
    await client.create("long story", generate=False)
    first = (await client.response())[-1]["response"]["id"]
    await client.create("and?", previous_response_id=first)
    await client.response()
    text = house.doors._gate.tokens.decode(house.service.jobs[1].tokens)
    assert "user\nlong story<|im_end|>\n<|im_start|>user\nand?" in text


async def test_an_unknown_response_is_not_found(house: House) -> None:
    client = await house.websocket()
    await client.create(previous_response_id="resp_x", stream_id="a")
    (error,) = await client.response()
    assert (error["status"], error["stream_id"]) == (400, "a")
    assert error["error"]["code"] == "previous_response_not_found"
    assert error["error"]["param"] == "previous_response_id"


async def test_another_connection_does_not_remember(house: House) -> None:
    client, other = await house.websocket(), await house.websocket()
    await client.create()
    first = (await client.response())[-1]["response"]["id"]
    await other.create(previous_response_id=first)
    assert kinds(await other.response()) == ["error"]


async def test_only_the_last_responses_are_remembered(house: House) -> None:
    house.set_up(remembered_responses=2)
    client = await house.websocket()
    made = []
    for _ in range(3):
        await client.create()
        made.append((await client.response())[-1]["response"]["id"])
    await client.create(previous_response_id=made[0])
    assert kinds(await client.response()) == ["error"]
    await client.create(previous_response_id=made[1])
    assert kinds(await client.response())[-1] == "response.completed"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("{", None),
        ("[1]", None),
        ("{}", None),
        ('{"type": "response.steer"}', "type"),
        ('{"type": "response.create"}', "input"),
        ('{"type": "response.create", "input": ""}', "input"),
        ('{"type": "response.create", "input": []}', "input"),
        ('{"type": "response.create", "input": 5}', "input"),
        ('{"type": "response.create", "input": [{"type": "item_reference"}]}', "input[0].type"),
        ('{"type": "response.create", "input": "x", "background": true}', "background"),
        ('{"type": "response.create", "input": "x", "tools": [1]}', "tools"),
        ('{"type": "response.create", "input": "x", "conversation": "c"}', "conversation"),
        ('{"type": "response.create", "input": "x", "max_output_tokens": 0}', "max_output_tokens"),
        ('{"type": "response.create", "input": "x", "metadata": {"a": 1}}', "metadata[...]"),
        (
            '{"type": "response.create", "input": "x", "text": {"format": {"type": "j"}}}',
            "text.format",
        ),
        ('{"type": "vertumnus:cancel"}', "response_id"),
        (b'{"type": "response.create", "input": "x"}', None),
    ],
)
async def test_a_bad_message_is_an_error_and_the_connection_goes_on(
    house: House, message: str | bytes, param: str | None
) -> None:
    client = await house.websocket()
    await client.send(message)
    (error,) = await client.response()
    assert (error["status"], error["error"]["type"]) == (400, "invalid_request_error")
    assert error["error"]["param"] == param
    await client.create()
    assert kinds(await client.response())[-1] == "response.completed"


async def test_another_model_is_404(house: House) -> None:
    client = await house.websocket()
    await client.create(model="big")
    (error,) = await client.response()
    assert (error["status"], error["error"]["code"]) == (404, "model_not_found")


async def test_a_refusal_of_the_node_is_an_error_with_retry_after(house: House) -> None:
    house.service.script = failing(Failed(429, "server_is_overloaded", "too much", 1.5))
    client = await house.websocket()
    await client.create(stream_id="a")
    (error,) = await client.response()
    assert (error["status"], error["stream_id"]) == (429, "a")
    assert error["error"]["code"] == "server_is_overloaded"
    assert error["error"]["retry_after"] == 1.5


async def test_a_failure_in_mid_answer_fails_the_response(house: House) -> None:
    house.service.script = failing(Failed(500, "server_error", "rank lost"), after="He")
    client = await house.websocket()
    await client.create()
    end = (await client.response())[-1]
    assert end["type"] == "response.failed"
    assert end["response"]["status"] == "failed"
    assert end["response"]["error"] == {"code": "server_error", "message": "rank lost"}


async def test_a_fault_of_ours_fails_one_response_only(house: House) -> None:
    house.service.script = lambda job: [1 / 0]
    client = await house.websocket()
    await client.create()
    (error,) = await client.response()
    assert (error["status"], error["error"]["message"]) == (500, "internal error")
    house.service.script = saying("fine")
    await client.create()
    assert kinds(await client.response())[-1] == "response.completed"


async def test_the_server_ends_at_once_with_a_client_that_does_not_read(
    house: House, autojump_clock: trio.testing.MockClock
) -> None:
    near, far = trio.testing.lockstep_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(house.doors.serve_stream, far)
        client = WebsocketClient(near)
        assert await client.open() == 101
        await client.create()
        await client.send("{")  # the reader gets stuck too
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert trio.current_time() < 1


async def test_the_handshake_needs_a_key_where_there_are_keys(house: House) -> None:
    house.set_up(keys=Keys(frozenset({"sesame"})))
    for headers in ({}, {"authorization": "Bearer wrong"}):
        client = WebsocketClient(house.connect().stream)
        assert await client.open(**headers) == 401
    client = await house.websocket(authorization="Bearer sesame", openai_beta="responses=v1")
    await client.create()
    await client.response()
    assert house.service.jobs[0].salt


async def test_a_withdrawn_key_starts_nothing_more(house: House) -> None:
    house.set_up(keys=Keys(frozenset({"sesame", "other"})))
    house.service.hold_after = 1
    client = await house.websocket(authorization="Bearer sesame")
    await client.create(stream_id="a")
    await house.service.until(lambda: bool(house.service.running))
    house.doors.replace_keys(Keys(frozenset({"other"})))
    await client.create(stream_id="b")
    while (event := await client.receive())["type"] != "error":
        pass
    assert (event["status"], event["stream_id"]) == (401, "b")
    house.service.release.set()
    assert kinds(await client.response())[-1] == "response.completed"
    assert await WebsocketClient(house.connect().stream).open(authorization="Bearer sesame") == 401
    await house.websocket(authorization="Bearer other")


async def test_the_handshake_of_a_foreign_web_page_is_refused(house: House) -> None:
    client = WebsocketClient(house.connect().stream)
    assert await client.open(origin="http://evil.example") == 403


async def test_an_unready_node_says_so_and_keeps_the_connection(house: House) -> None:
    house.service.unready = "no controller"
    client = await house.websocket()
    await client.create()
    (error,) = await client.response()
    assert (error["status"], error["error"]["code"]) == (503, "service_unavailable")
    house.service.unready = ""
    await client.create()
    assert kinds(await client.response())[-1] == "response.completed"


async def test_draining_closes_idle_websockets_and_lets_busy_ones_finish(house: House) -> None:
    house.service.hold_after = 1
    idle, busy = await house.websocket(), await house.websocket()
    await busy.create()
    await house.service.until(lambda: bool(house.service.running))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(house.doors.drain)
        assert await idle.closed() == 1012
        await busy.create(stream_id="late")
        while (event := await busy.receive())["type"] != "error":
            pass
        assert event["error"]["code"] == "service_unavailable"
        assert await WebsocketClient(house.connect().stream).open() == 503
        house.service.release.set()
        assert kinds(await busy.response())[-1] == "response.completed"
        assert await busy.closed() == 1012


async def test_draining_does_not_wait_for_a_client_that_does_not_close(
    house: House, autojump_clock: trio.testing.MockClock
) -> None:
    await house.websocket()
    with trio.fail_after(10):
        await house.doors.drain()


async def test_pings_are_answered_while_a_response_runs(house: House) -> None:
    house.service.hold_after = 0
    client = await house.websocket()
    await client.create()
    await client._send(Ping(payload=b"there?"))
    event = await client.next()
    assert isinstance(event, Pong)
    assert event.payload == b"there?"


async def test_the_server_pings(house: House, autojump_clock: trio.testing.MockClock) -> None:
    client = await house.websocket()
    assert isinstance(await client.next(), Ping)
    assert 15 <= trio.current_time() <= 20


async def test_missing_pongs_close_nothing_before_a_long_prefill_ends(
    house: House, autojump_clock: trio.testing.MockClock
) -> None:
    house.service.hold_after = 1
    client = await house.websocket()
    await client.create()
    await trio.sleep(500)
    house.service.release.set()
    await house.service.until(lambda: not house.service.running)
    assert not house.service.cancelled


async def test_silence_for_too_long_closes(
    house: House, autojump_clock: trio.testing.MockClock
) -> None:
    client = await house.websocket()
    assert await client.closed() == 1006
    assert 600 <= trio.current_time() <= 640
