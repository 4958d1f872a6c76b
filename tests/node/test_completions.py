"""/v1/completions and /v1/chat/completions: answers, streams, and everything that is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from scripted import CONTEXT, STOP, VOCAB, House, events, failing, ids, saying

from vertumnusd.messages import Failed

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
TIMES = {
    "worker": "CP2[0-1]",
    "degree": 2,
    "predicted_s": 0.5,
    "prefill_s": 0.5,
    "queue_s": 0.25,
    "ttft_s": 0.75,
    "handoff_ttft_s": 0.8,
}


async def post(house: House, path: str, **fields: Any) -> Any:
    status, _, body = await house.connect().post(path, fields)
    assert status == 200, body
    return body


async def stream(house: House, path: str, **fields: Any) -> list[Any]:
    return events(await post(house, path, stream=True, **fields))


async def test_a_completion_has_text_usage_and_times(house: House) -> None:
    body = await post(house, TEXT, model="tiny", prompt="hello")
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop"}
    ]
    assert body["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 6,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert body["vertumnus"] == TIMES


async def test_a_prompt_of_token_ids_goes_to_the_node_as_it_is(house: House) -> None:
    await post(house, TEXT, prompt=[5, 0, VOCAB - 1])
    assert house.service.jobs[0].tokens == [5, 0, VOCAB - 1]


async def test_several_prompts_have_several_choices(house: House) -> None:
    house.service.script = lambda job: saying("a" * len(job.tokens))(job)
    body = await post(house, TEXT, prompt=["x", "xyz", "xy"])
    assert [choice["text"] for choice in body["choices"]] == ["a", "aaa", "aa"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert body["usage"]["prompt_tokens"] == 6
    assert len(body["vertumnus"]) == 3
    body = await post(house, TEXT, prompt=[[1, 2], [3]])
    assert [choice["text"] for choice in body["choices"]] == ["aa", "a"]


async def test_sampling_is_greedy_unless_asked_otherwise(house: House) -> None:
    await post(house, TEXT, prompt="x")
    await post(house, TEXT, prompt="x", temperature=0.5, top_p=0.9, seed=-1, max_tokens=7)
    greedy, drawn = house.service.jobs
    assert (greedy.sampling.temperature, greedy.sampling.top_p) == (0.0, 1.0)
    assert (drawn.sampling.temperature, drawn.sampling.top_p) == (0.5, 0.9)
    assert drawn.sampling.seed == 2**63 - 1
    assert drawn.max_new_tokens == 7


async def test_requests_without_a_seed_draw_different_ones(house: House) -> None:
    for _ in range(2):
        await post(house, TEXT, prompt="x", temperature=1)
    one, other = house.service.jobs
    assert one.sampling.seed != other.sampling.seed


async def test_the_default_maximum_is_what_the_context_leaves(house: House) -> None:
    await post(house, TEXT, prompt="x" * 500)
    house.set_up(default_output_tokens=10)
    await post(house, TEXT, prompt="x")
    house.service.kv_capacity_tokens = 105
    await post(house, TEXT, prompt="x" * 100)
    assert [job.max_new_tokens for job in house.service.jobs] == [CONTEXT - 500, 10, 5]


async def test_a_maximum_of_nothing_prefills(house: House) -> None:
    body = await post(house, TEXT, prompt="x", max_tokens=0)
    assert body["choices"][0]["text"] == ""
    assert house.service.jobs[0].max_new_tokens == 0


async def test_the_length_limit_is_told(house: House) -> None:
    body = await post(house, TEXT, prompt="x", max_tokens=2)
    assert body["choices"][0] == {
        "index": 0,
        "text": "He",
        "logprobs": None,
        "finish_reason": "length",
    }


async def test_benchmarks_can_ignore_the_stop_token(house: House) -> None:
    await post(house, TEXT, prompt="x", ignore_eos=True)
    await post(house, TEXT, prompt="x")
    assert [job.stop_tokens for job in house.service.jobs] == [(), (STOP,)]


async def test_a_stop_string_ends_the_answer_before_itself(house: House) -> None:
    house.service.script = saying("one two three four")
    body = await post(house, TEXT, prompt="hello", stop=["thr", "x"])
    assert body["choices"][0]["text"] == "one two "
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == len("one two thr")
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 4
    assert body["vertumnus"]["worker"] == "CP2[0-1]"
    assert house.service.cancelled == [house.service.jobs[0].request]


async def test_nothing_of_a_stop_string_is_streamed(house: House) -> None:
    house.service.script = saying("one two three four")
    chunks = await stream(house, TEXT, prompt="x", stop="thr")
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1])
    assert text == "one two "
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"


async def test_a_streamed_completion(house: House) -> None:
    chunks = await stream(house, TEXT, prompt="x", stream_options={"include_usage": True})
    *deltas, end, usage, done = chunks
    assert [chunk["choices"][0]["text"] for chunk in deltas] == list("Hello")
    assert end["choices"][0] == {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}
    assert end["vertumnus"] == TIMES
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 6
    assert done == "[DONE]"
    assert len({chunk["id"] for chunk in chunks[:-1]}) == 1


async def test_usage_is_streamed_only_when_asked_for(house: House) -> None:
    assert not any("usage" in chunk for chunk in (await stream(house, TEXT, prompt="x"))[:-1])


async def test_streams_of_several_prompts_carry_their_index(house: House) -> None:
    chunks = (await stream(house, TEXT, prompt=["a", "b"]))[:-1]
    for index in (0, 1):
        parts = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(part["text"] for part in parts) == "Hello"


async def test_characters_are_streamed_whole(house: House) -> None:
    house.service.script = saying("é🙂")
    chunks = await stream(house, TEXT, prompt="x")
    assert [chunk["choices"][0]["text"] for chunk in chunks[:-1]] == ["é", "🙂", ""]


async def test_every_token_is_streamed_when_it_exists(house: House) -> None:
    house.service.hold_after = 3
    client = house.connect()
    await client.send("POST", TEXT, json.dumps({"prompt": "x", "stream": True}).encode())
    await client.head()
    got = b""
    data = client.data()
    while got.count(b"\n\n") < 2:
        got += await anext(data)
    texts = [event["choices"][0]["text"] for event in events(got.decode())]
    assert texts == ["H", "e"]
    house.service.release.set()
    assert b"[DONE]" in b"".join([part async for part in data])


async def test_a_chat_renders_the_template(house: House) -> None:
    messages = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "<|im_end|>"},
    ]
    body = await post(house, CHAT, messages=messages, max_completion_tokens=3, max_tokens=9)
    choice = body["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "Hel", "refusal": None}
    assert choice["finish_reason"] == "length"
    assert body["object"] == "chat.completion"
    assert body["vertumnus"] == TIMES
    (job,) = house.service.jobs
    start = STOP - 1
    said = [("system", "Be kind."), ("user", "hi"), ("assistant", ""), ("user", "<|im_end|>")]
    expected = []
    for role, text in said:
        expected += [start, *ids(f"{role}\n{text}"), STOP, *ids("\n")]
    assert job.tokens == [*expected, start, *ids("assistant\n")]


async def test_a_streamed_chat(house: House) -> None:
    options = {"include_usage": True}
    chunks = await stream(house, CHAT, messages=HI, stream_options=options)
    first, *deltas, end, usage, done = chunks
    assert first["object"] == "chat.completion.chunk"
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["delta"] for chunk in deltas] == [{"content": c} for c in "Hello"]
    assert end["choices"][0]["finish_reason"] == "stop"
    assert end["choices"][0]["delta"] == {}
    assert usage["usage"]["prompt_tokens_details"]["cached_tokens"] == 4
    assert done == "[DONE]"


@pytest.mark.parametrize("path", [TEXT, CHAT])
async def test_a_refusal_of_the_node_is_an_http_error_even_when_streaming(
    house: House, path: str
) -> None:
    house.service.script = failing(Failed(429, "server_is_overloaded", "too much", 2.5))
    for streaming in (False, True):
        request = {"prompt": "x", "messages": HI, "stream": streaming}
        status, headers, body = await house.connect().post(path, request)
        assert (status, headers["retry-after"]) == (429, "3")
        assert body["error"] == {
            "message": "too much",
            "type": "rate_limit_error",
            "param": None,
            "code": "server_is_overloaded",
            "retry_after": 2.5,
        }


@pytest.mark.parametrize("path", [TEXT, CHAT])
async def test_a_failure_in_mid_stream_is_its_last_event(house: House, path: str) -> None:
    house.service.script = failing(Failed(500, "server_error", "rank lost"), after="He")
    chunks = await stream(house, path, prompt="x", messages=HI)
    assert chunks[-2]["error"]["message"] == "rank lost"
    assert chunks[-1] == "[DONE]"


async def test_one_failing_prompt_ends_the_others(house: House) -> None:
    def script(job: Any) -> Any:
        bad = len(job.tokens) == 1
        return failing(Failed(500, "server_error", "lost"))(job) if bad else hold(job)

    hold = saying("x" * 300)
    house.service.script = script
    status, _, body = await house.connect().post(TEXT, {"prompt": ["aa", "b"]})
    assert (status, body["error"]["message"]) == (500, "lost")
    assert len(house.service.cancelled) == 1
    assert not house.service.running


async def test_tokenize_and_detokenize(house: House) -> None:
    client = house.connect()
    _, _, body = await client.post("/tokenize", {"prompt": "h<|im_end|>"})
    assert body == {"count": 11, "max_model_len": CONTEXT, "tokens": ids("h<|im_end|>")}
    _, _, back = await client.post("/detokenize", {"tokens": [*body["tokens"], STOP]})
    assert back == {"prompt": "h<|im_end|><|im_end|>"}
    _, _, body = await client.post("/tokenize", {"messages": HI})
    assert body["tokens"].count(STOP) == 1
    assert (await client.post("/tokenize", {}))[0] == 400
    assert (await client.post("/tokenize", {"prompt": "x" * 600}))[0] == 400
    for tokens in ([VOCAB], [-1], ["a"], [2**40]):
        assert (await client.post("/detokenize", {"tokens": tokens}))[0] == 400
