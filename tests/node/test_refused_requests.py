"""Requests that cannot be answered: each is refused by name, and costs nothing."""

from __future__ import annotations

from typing import Any

import pytest
from scripted import VOCAB, House

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HI = [{"role": "user", "content": "hi"}]


async def accepted(house: House, path: str, **fields: Any) -> None:
    assert (await house.connect().post(path, fields))[0] == 200


async def refused(house: House, path: str, content: object) -> tuple[int, dict[str, Any]]:
    status, _, body = await house.connect().post(path, content)
    assert not house.service.jobs
    assert body["error"]["message"]
    return status, body["error"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": 0}, "logprobs"),
        ({"best_of": 3}, "best_of"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"logit_bias": {"1": 2}}, "logit_bias"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
    ],
)
async def test_completions_refuse_what_they_cannot_honour(
    house: House, fields: dict[str, Any], param: str
) -> None:
    status, error = await refused(house, TEXT, {"prompt": "x", **fields})
    assert (status, error["code"], error["param"]) == (400, "unsupported_parameter", param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logprobs": True}, "logprobs"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "messages[0].content[0].type"),
        ({"messages": [*HI, {"role": "assistant", "tool_calls": [1]}]}, "messages[1].tool_calls"),
    ],
)  # fmt: skip
async def test_chats_refuse_what_they_cannot_honour(
    house: House, fields: dict[str, Any], param: str
) -> None:
    status, error = await refused(house, CHAT, {"messages": HI, **fields})
    assert (status, error["param"]) == (400, param)


async def test_fields_that_ask_for_nothing_or_are_unknown_are_ignored(house: House) -> None:
    await accepted(
        house, TEXT, prompt="x", n=1, best_of=1, logprobs=None, echo=False, logit_bias={},
        frequency_penalty=0, presence_penalty=0.0, user="me", anything={"at": "all"},
    )  # fmt: skip
    await accepted(
        house, CHAT, messages=HI, n=1, tools=[], tool_choice="auto", logprobs=False,
        response_format={"type": "text"}, modalities=["text"], metadata={}, verbosity="low",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": ["a"] * 17}, "prompt"),
        ({"prompt": [1, VOCAB]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**70]}, "prompt"),
        ({"prompt": [[1, 2], [1, "a"]]}, "prompt[1][1]"),
        ({"prompt": [[1.5]]}, "prompt[0][0]"),
        ({"prompt": [[True]]}, "prompt[0][0]"),
        ({"prompt": [[1], [2, -1]]}, "prompt[1]"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": "x", "temperature": -1}, "temperature"),
        ({"prompt": "x", "temperature": 2.5}, "temperature"),
        ({"prompt": "x", "temperature": "hot"}, "temperature"),
        ({"prompt": "x", "top_p": 0}, "top_p"),
        ({"prompt": "x", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "x", "max_tokens": 1.5}, "max_tokens"),
        ({"prompt": "x", "seed": 2**64}, "seed"),
        ({"prompt": "x", "stop": list("abcde")}, "stop"),
        ({"prompt": "x", "stop": ""}, "stop"),
        ({"prompt": "x", "stop": "y" * 300}, "stop"),
        ({"prompt": "x", "stop": [1]}, "stop[0]"),
        ({"prompt": "x", "stream": "yes"}, "stream"),
        ({"prompt": "x", "model": 7}, "model"),
        ({"prompt": "x", "stream_options": {"include_usage": 3}}, "stream_options.include_usage"),
    ],
)
async def test_a_bad_value_is_named(house: House, fields: dict[str, Any], param: str) -> None:
    status, error = await refused(house, TEXT, fields)
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert error["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, None),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": HI, "max_completion_tokens": 0}, "max_completion_tokens"),
    ],
)
async def test_a_bad_message_is_named(
    house: House, fields: dict[str, Any], param: str | None
) -> None:
    status, error = await refused(house, CHAT, fields)
    assert (status, error["param"]) == (400, param)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\xed\xa0\x80"}',
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "temperature": 1e999}',
        b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": "x", "unknown": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt": ' + b"[" * 100_000,
        b"\x00\x01\x02",
    ],
)
async def test_what_is_not_json_of_the_right_kind_is_400(house: House, body: bytes) -> None:
    client = house.connect()
    status, _, answer = await client.request("POST", TEXT, body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert not house.service.jobs
    assert (await client.get("/live"))[0] == 200


async def test_another_model_is_404_and_the_served_one_is_named(house: House) -> None:
    status, error = await refused(house, TEXT, {"prompt": "x", "model": "big"})
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "'tiny'" in error["message"]


async def test_a_prompt_over_the_context_is_refused_with_both_numbers(house: House) -> None:
    for prompt in ("x" * 600, [1] * 600):
        status, error = await refused(house, TEXT, {"prompt": prompt})
        assert (status, error["code"]) == (400, "context_length_exceeded")
        assert "512" in error["message"]
        assert "600" in error["message"]
    status, error = await refused(house, CHAT, {"messages": HI * 20_000})
    assert status == 400


async def test_an_answer_that_does_not_fit_behind_the_prompt_is_refused(house: House) -> None:
    status, error = await refused(house, TEXT, {"prompt": "x" * 500, "max_tokens": 13})
    assert (status, error["code"]) == (400, "context_length_exceeded")
    await refused(house, TEXT, {"prompt": "x", "max_tokens": 10**30})
    await accepted(house, TEXT, prompt="x" * 500, max_tokens=12)


async def test_a_prompt_over_the_kv_memory_is_refused(house: House) -> None:
    house.service.kv_capacity_tokens = 100
    status, error = await refused(house, TEXT, {"prompt": "x" * 100})
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert "KV memory holds 100" in error["message"]


async def test_a_model_without_a_chat_template_says_so(house: House) -> None:
    house.set_up(template="")
    status, error = await refused(house, CHAT, {"messages": HI})
    assert (status, error["code"]) == (400, "no_chat_template")


async def test_a_template_that_refuses_or_fails_is_a_clear_error(house: House) -> None:
    house.set_up(template="{{ raise_exception('only one turn') }}")
    status, error = await refused(house, CHAT, {"messages": HI})
    assert (status, error["param"]) == (400, "messages")
    assert "only one turn" in error["message"]
    house.set_up(template="{{ messages[0].content.nothing.at.all }}")
    status, error = await refused(house, CHAT, {"messages": HI})
    assert (status, error["code"]) == (500, "chat_template_error")
