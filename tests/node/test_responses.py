"""POST /v1/responses."""

from __future__ import annotations

from typing import Any

from scripted import House, events, failing, kinds

from vertumnusd.messages import Failed

PATH = "/v1/responses"


def prompt(house: House, at: int = 0) -> str:
    """What the model saw."""
    return house.doors._gate.tokens.decode(house.service.jobs[at].tokens)


async def test_a_response_is_one_object(house: House) -> None:
    status, _, response = await house.connect().post(PATH, {"model": "tiny", "input": "hi"})
    assert status == 200
    assert (response["object"], response["status"]) == ("response", "completed")
    assert response["output"][0]["content"][0]["text"] == "Hello"
    assert response["usage"]["input_tokens_details"]["cached_tokens"] == 4
    assert response["vertumnus"]["degree"] == 2
    assert response["store"] is False


async def test_items_of_every_kind_of_text_are_taken(house: House) -> None:
    said = [{"type": "output_text", "text": "yes", "annotations": []}]
    items = [
        {"role": "developer", "content": "Be kind."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "x", "content": said},
        {"role": "user", "content": "go on"},
    ]
    status, _, _ = await house.connect().post(PATH, {"input": items, "instructions": "Be brief."})
    assert status == 200
    turns = ["system\nBe brief.", "system\nBe kind.", "user\nhi", "assistant\nyes", "user\ngo on"]
    said_all = "".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in turns)
    assert prompt(house) == said_all + "<|im_start|>assistant\n"


async def test_a_stream_names_its_events_and_ends(house: House) -> None:
    _, headers, body = await house.connect().post(PATH, {"input": "hi", "stream": True})
    assert headers["content-type"] == "text/event-stream"
    *made, done = events(body)
    assert done == "[DONE]"
    names = [line[7:] for line in body.split("\n") if line.startswith("event: ")]
    assert names == kinds(made)
    assert [event["sequence_number"] for event in made] == list(range(len(made)))
    assert made[-1]["type"] == "response.completed"


async def test_a_failure_in_mid_stream_fails_the_response(house: House) -> None:
    house.service.script = failing(Failed(500, "server_error", "rank lost"), after="He")
    _, _, body = await house.connect().post(PATH, {"input": "hi", "stream": True})
    *made, done = events(body)
    assert done == "[DONE]"
    assert made[-1]["type"] == "response.failed"
    assert made[-1]["response"]["error"]["message"] == "rank lost"


async def test_a_refusal_before_the_stream_is_an_http_error(house: House) -> None:
    house.service.script = failing(Failed(503, "service_unavailable", "no worker", 1.0))
    for streaming in (False, True):
        status, headers, body = await house.connect().post(
            PATH, {"input": "hi", "stream": streaming}
        )
        assert (status, headers["retry-after"]) == (503, "1")
        assert body["error"]["code"] == "service_unavailable"


async def test_a_prefix_can_be_warmed(house: House) -> None:
    request: dict[str, Any] = {"input": "long story", "generate": False}
    _, _, response = await house.connect().post(PATH, request)
    assert (response["status"], response["output"]) == ("completed", [])
    assert house.service.jobs[0].max_new_tokens == 0


async def test_nothing_is_remembered_over_http(house: House) -> None:
    client = house.connect()
    _, _, response = await client.post(PATH, {"input": "hi"})
    request = {"input": "more", "previous_response_id": response["id"]}
    status, _, body = await client.post(PATH, request)
    assert (status, body["error"]["code"]) == (400, "previous_response_not_found")
