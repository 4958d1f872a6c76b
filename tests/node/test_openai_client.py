"""The real OpenAI client, unmodified, against the doors on loopback."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import openai
import pytest
import trio
from openai import OpenAI
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from scripted import CONTEXT, House, failing, saying

from vertumnusd.messages import Failed
from vertumnusd.node.keys import Keys

T = TypeVar("T")

HI: list[Any] = [{"role": "user", "content": "hi"}]


async def with_client(house: House, use: Callable[[OpenAI], T], key: str = "none") -> T:
    """Run ``use`` in a thread with a client of the house."""
    port = await house.listen()

    def work() -> T:
        url = f"http://127.0.0.1:{port}/v1"
        with OpenAI(base_url=url, api_key=key, max_retries=0, timeout=30) as client:
            return use(client)

    return await trio.to_thread.run_sync(work)


def strictly(type_: Any, content: object) -> None:
    """The client builds objects leniently; this checks every field that the type requires."""
    TypeAdapter(type_).validate_python(content)


async def test_models(house: House) -> None:
    models = await with_client(house, lambda client: client.models.list().data)
    assert [model.id for model in models] == ["tiny"]
    model = await with_client(house, lambda client: client.models.retrieve("tiny"))
    assert model.owned_by == "vertumnus"


async def test_a_completion(house: House) -> None:
    answer = await with_client(
        house, lambda client: client.completions.create(model="tiny", prompt="hi", max_tokens=3)
    )
    strictly(Completion, answer.to_dict())
    assert answer.choices[0].text == "Hel"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 4
    assert answer.to_dict()["vertumnus"]["worker"] == "CP2[0-1]"


async def test_a_streamed_completion(house: House) -> None:
    def use(client: OpenAI) -> list[Completion]:
        options: Any = {"include_usage": True}
        stream = client.completions.create(
            model="tiny", prompt=[1, 2], stream=True, stream_options=options
        )
        return list(stream)

    *chunks, usage = await with_client(house, use)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello"
    assert usage.usage is not None
    assert usage.usage.completion_tokens == 6


async def test_a_chat(house: House) -> None:
    answer = await with_client(
        house, lambda client: client.chat.completions.create(model="tiny", messages=HI)
    )
    strictly(ChatCompletion, answer.to_dict())
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].finish_reason == "stop"


async def test_a_streamed_chat(house: House) -> None:
    def use(client: OpenAI) -> list[ChatCompletionChunk]:
        return list(client.chat.completions.create(model="tiny", messages=HI, stream=True))

    chunks = await with_client(house, use)
    for chunk in chunks:
        strictly(ChatCompletionChunk, chunk.to_dict())
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello"
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_a_chat_through_the_clients_own_stream_helper(house: House) -> None:
    def use(client: OpenAI) -> str | None:
        with client.chat.completions.stream(model="tiny", messages=HI) as stream:
            return stream.get_final_completion().choices[0].message.content

    assert await with_client(house, use) == "Hello"


async def test_a_response(house: House) -> None:
    answer = await with_client(
        house,
        lambda client: client.responses.create(
            model="tiny", input="hi", store=False, metadata={"a": "b"}, temperature=0.5
        ),
    )
    strictly(Response, answer.to_dict())
    assert answer.output_text == "Hello"
    assert answer.status == "completed"
    assert (answer.metadata, answer.temperature) == ({"a": "b"}, 0.5)
    assert answer.usage is not None
    assert answer.usage.input_tokens_details.cached_tokens == 4


async def test_a_streamed_response(house: House) -> None:
    def use(client: OpenAI) -> list[Any]:
        return list(client.responses.create(model="tiny", input=HI, stream=True))

    events = await with_client(house, use)
    for event in events:
        if not event.type.startswith("vertumnus:"):
            strictly(ResponseStreamEvent, event.to_dict())
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == "Hello"
    assert events[-1].response.output_text == "Hello"


async def test_a_response_through_the_clients_own_stream_helper(house: House) -> None:
    def use(client: OpenAI) -> str:
        with client.responses.stream(model="tiny", input="hi") as stream:
            return stream.get_final_response().output_text

    assert await with_client(house, use) == "Hello"


async def test_errors_are_the_clients_own_exceptions(house: House) -> None:
    def use(client: OpenAI) -> None:
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="big", messages=HI)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as long:
            client.completions.create(model="tiny", prompt="x" * (CONTEXT + 1))
        assert long.value.code == "context_length_exceeded"
        assert long.value.param == "prompt"
        with pytest.raises(openai.BadRequestError) as forgotten:
            client.responses.create(model="tiny", input="hi", previous_response_id="resp_x")
        assert forgotten.value.code == "previous_response_not_found"

    await with_client(house, use)


async def test_overload_and_failures_in_mid_stream_are_exceptions(house: House) -> None:
    house.service.script = failing(Failed(429, "server_is_overloaded", "too much", 2.0))

    def refuse(client: OpenAI) -> None:
        with pytest.raises(openai.RateLimitError) as refused:
            client.completions.create(model="tiny", prompt="x")
        assert refused.value.response.headers["retry-after"] == "2"

    await with_client(house, refuse)
    house.service.script = failing(Failed(500, "server_error", "rank lost"), after="He")

    def fail(client: OpenAI) -> None:
        with pytest.raises(openai.APIError, match="rank lost"):
            list(client.chat.completions.create(model="tiny", messages=HI, stream=True))
        events = list(client.responses.create(model="tiny", input="hi", stream=True))
        assert events[-1].type == "response.failed"

    await with_client(house, fail)


async def test_a_wrong_key_is_an_authentication_error(house: House) -> None:
    house.set_up(keys=Keys(frozenset({"sesame"})))

    def use(client: OpenAI) -> None:
        with pytest.raises(openai.AuthenticationError):
            client.completions.create(model="tiny", prompt="x")

    await with_client(house, use, key="wrong")
    models = await with_client(house, lambda client: client.models.list().data, key="sesame")
    assert len(models) == 1


async def test_closing_a_stream_cancels_the_request(house: House) -> None:
    house.service.script = saying("x" * 400)
    house.service.hold_after = 5

    def use(client: OpenAI) -> None:
        stream = client.completions.create(model="tiny", prompt="x", stream=True)
        next(iter(stream))
        stream.close()

    await with_client(house, use)
    await house.service.until(lambda: not house.service.running)
    assert len(house.service.cancelled) == 1


async def test_a_websocket_response(house: House) -> None:
    def use(client: OpenAI) -> list[Any]:
        with client.responses.connect() as connection:
            connection.response.create(model="tiny", input="hi", store=False)
            events = []
            for event in connection:
                events.append(event)
                if event.type == "response.completed":
                    return events
        return events

    events = await with_client(house, use)
    for event in events:
        if not event.type.startswith("vertumnus:"):
            strictly(ResponseStreamEvent, event.to_dict())
    assert events[-1].response.output_text == "Hello"
    assert events[-1].response.usage.input_tokens_details.cached_tokens == 4


async def test_websocket_lanes_and_memory(house: House) -> None:
    def use(client: OpenAI) -> dict[str, list[Any]]:
        ended: dict[str, list[Any]] = {"a": [], "b": []}
        with client.responses.connect() as connection:
            for lane in ("a", "b", "a"):
                connection.response.create(model="tiny", input=lane, stream_id=lane)
            for event in connection:
                if event.type == "response.completed":
                    ended[event.stream_id].append(event.response)
                if sum(map(len, ended.values())) == 3:
                    break
            connection.response.create(
                model="tiny", input="go on", previous_response_id=ended["b"][0].id, stream_id="c"
            )
            for event in connection:
                if event.type == "response.completed":
                    ended["c"] = [event.response]
                    break
        return ended

    ended = await with_client(house, use)
    assert [len(ended[lane]) for lane in "abc"] == [2, 1, 1]
    assert ended["c"][0].previous_response_id == ended["b"][0].id


async def test_websocket_errors(house: House) -> None:
    def use(client: OpenAI) -> None:
        with client.responses.connect() as connection:
            connection.response.create(
                model="tiny", input="hi", previous_response_id="resp_x", stream_id="a"
            )
            error = connection.recv()
            assert error.type == "error"
            assert (error.status, error.stream_id) == (400, "a")
            assert error.error.code == "previous_response_not_found"
            connection.response.create(model="tiny", input="hi", tools=[{"type": "web_search"}])
            refused: Any = connection.recv()
            assert (refused.error.code, refused.error.param) == ("unsupported_parameter", "tools")
            connection.response.create(model="tiny", input="hi")
            assert connection.recv().type == "response.created"

    await with_client(house, use)


async def test_a_warmed_prefix_over_the_websocket(house: House) -> None:
    def use(client: OpenAI) -> Any:
        with client.responses.connect() as connection:
            connection.response.create(model="tiny", input="long story", generate=False)
            for event in connection:
                if event.type == "response.completed":
                    return event.response

    response = await with_client(house, use)
    strictly(Response, response.to_dict())
    assert response.output == []
    assert json.loads(response.to_json())["usage"]["output_tokens"] == 0


async def test_a_websocket_with_a_wrong_key_is_refused(house: House) -> None:
    house.set_up(keys=Keys(frozenset({"sesame"})))
    from websockets.exceptions import InvalidStatus

    def use(client: OpenAI) -> None:
        with pytest.raises(InvalidStatus) as refused, client.responses.connect():
            pass
        assert refused.value.response.status_code == 401

    await with_client(house, use, key="wrong")
