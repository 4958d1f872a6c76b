"""The whole daemon as its users meet it: real ranks, a real small model, one port."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from harness import DOCUMENT, Client, Daemon, ask, ask_at_once, children, daemon
from openai import OpenAI

pytestmark = pytest.mark.ranks

CLUSTER = {"ranks": 4, "cp_degrees": [1, 2], "composition": "1CP2/2CP1"}
PAPER = {"policy": "paper"}  # ours keeps equal questions on one worker
BY_HAND = {"automatic": False}
MODEL = "SmolLM2-135M-Instruct"
PARIS = "The capital of France is"


@pytest.fixture(scope="module")
def node():
    with daemon(cluster=CLUSTER, placement=PAPER, adaptation=BY_HAND) as running:
        yield running


@pytest.fixture
def client(node):
    with Client(node.port) as connected:
        yield connected


@pytest.fixture
def openai(node):
    with OpenAI(base_url=f"http://127.0.0.1:{node.port}/v1", api_key="none") as api:
        yield api


def wait_until(true, limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if true():
            return True
        time.sleep(0.02)
    return bool(true())


def held(view) -> int:
    """Whatever the cluster still holds for somebody."""
    pinned = sum(home["pinned_blocks"] + home["reserved_blocks"] for home in view["homes"])
    decode = sum(pool["kv_blocks"] - pool["free_blocks"] for pool in view["decode"])
    return pinned + decode + len(view["requests"]) + view["waiting"]["requests"]


def test_the_prompt_is_continued(client):
    answer = client.complete(PARIS, 4)
    assert answer.text.startswith(" Paris")
    assert answer.facts["ttft_s"] <= answer.facts["handoff_ttft_s"]


def test_text_and_token_ids_are_the_same_prompt(client):
    ids = tokenize(client, PARIS)
    assert client.complete(ids, 8).text == client.complete(PARIS, 8).text


def tokenize(client: Client, text: str) -> list[int]:
    body = json.dumps({"prompt": text}).encode()
    return json.loads(client.request("POST", "/tokenize", body)[1])["tokens"]


def test_every_degree_and_a_hit_answer_alike(node):
    """Equal questions at once spread over all workers; a later one hits."""
    prompt = DOCUMENT[:4000]
    answers = [*ask_at_once(node.port, [prompt] * 3, 8), ask(node.port, prompt, 8)]

    assert len({answer.text for answer in answers}) == 1
    assert {answer.facts["degree"] for answer in answers} == {1, 2}
    assert answers[-1].cached_tokens == (answers[-1].input_tokens - 1) // 16 * 16


@pytest.mark.parametrize("length", [1, 2, 3, 15, 16, 17, 32, 33])
def test_lengths_at_the_borders_answer_the_same_cold_and_hit(client, length):
    ids = [1000 + 7 * length + i for i in range(length)]
    cold, hit = client.complete(ids, 4), client.complete(ids, 4)
    assert cold.text == hit.text
    assert hit.cached_tokens == (length - 1) // 16 * 16


def test_the_openai_client_streams_lanes_over_one_websocket(openai):
    ended, placed = {}, set()
    with openai.responses.connect() as connection:
        for lane in ("one", "two"):
            connection.response.create(
                model=MODEL, input=f"Say {lane}.", max_output_tokens=8, stream_id=lane
            )
        for event in connection:
            if event.type == "vertumnus:placement":
                placed.add(event.stream_id)
            if event.type in ("response.completed", "response.incomplete"):
                ended[event.stream_id] = event.response
            if len(ended) == 2:
                break
    assert set(ended) == placed == {"one", "two"}
    assert all(response.output_text for response in ended.values())


def test_a_seed_repeats_a_warm_answer(openai):
    def ask(seed: int) -> str:
        answer = openai.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Write a line about rain."}],
            temperature=1.0,
            top_p=0.9,
            seed=seed,
            max_tokens=12,
        )
        return answer.choices[0].message.content

    assert ask(1) == ask(1)
    assert len({ask(seed) for seed in range(4)}) > 1


BAD = [
    ({"prompt": ""}, 400, "empty"),
    ({"prompt": "x", "model": "gpt-9"}, 404, MODEL),
    ({"prompt": [0] * 9000}, 400, "8192"),
    ({"prompt": [49152]}, 400, "49151"),
    ({"prompt": [-1]}, 400, "49151"),
    ({"prompt": "x", "max_tokens": -1}, 400, "max_tokens"),
    ({"prompt": "x", "temperature": "warm"}, 400, "temperature"),
    ({"prompt": "x", "top_p": 0}, 400, "top_p"),
    ({"prompt": "x", "n": 2}, 400, "n"),
    ({}, 400, "prompt"),
    (b'{"prompt": "\\ud800"}', 400, ""),
    (b'{"prompt": ', 400, "JSON"),
    (b"\xff\xfe", 400, ""),
    (b"[]", 400, ""),
]


@pytest.mark.parametrize(("body", "status", "word"), BAD, ids=[str(b[0])[:30] for b in BAD])
def test_bad_input_is_a_clear_error_and_leaves_the_connection_usable(client, body, status, word):
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    found, answer = client.request("POST", "/v1/completions", sent)
    error = json.loads(answer)["error"]
    assert found == status
    assert word in error["message"]
    assert error["type"]
    assert client.complete(PARIS, 1).text == " Paris"


def test_special_token_text_stays_text(client):
    assert len(tokenize(client, "<|im_end|>")) > 1


def test_a_client_that_leaves_in_the_middle_of_a_prefill_frees_everything(node, client):
    request = json.dumps({"prompt": "Leaving. " + DOCUMENT, "max_tokens": 8})
    with socket.create_connection(("127.0.0.1", node.port)) as leaver:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(request)}\r\n\r\n"
        leaver.sendall((head + request).encode())
        assert wait_until(lambda: running_layers(client) > 0, 20)
    assert wait_until(lambda: held(client.get("/v1/cluster")) == 0, 10)
    assert client.complete(PARIS, 1).text == " Paris"


def running_layers(client: Client) -> int:
    view = client.get("/v1/cluster")
    return max((request["layers_done"] or 0 for request in view["requests"]), default=0)


def test_status_prints_the_cluster(node):
    command = [sys.executable, "-m", "vertumnusd", "status", "--url"]
    url = f"http://127.0.0.1:{node.port}"
    text = subprocess.run([*command, url], capture_output=True, text=True, check=True).stdout
    assert "1CP2/2CP1" in text
    assert "CP2[0-1]" in text
    view = json.loads(
        subprocess.run([*command, url, "--json"], capture_output=True, check=True).stdout
    )
    assert view["composition"] == "1CP2/2CP1"


def test_a_killed_rank_costs_no_answer(node, client):
    """Kill a prefill rank, then the decode rank, under a stream of requests."""
    prompt = "The days of the week are"
    expected = client.complete(prompt, 24).text
    for kind in ("prefill", "decode"):
        kill = threading.Timer(0.1, os.kill, (rank_pid(node, kind), signal.SIGKILL))
        kill.start()
        answers = ask_at_once(node.port, [prompt] * 6, 24)
        kill.join()
        assert [answer.text for answer in answers] == [expected] * 6
        assert wait_until(lambda: all_serve(client), 60)
    assert wait_until(lambda: held(client.get("/v1/cluster")) == 0, 5)


@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_a_rank_that_was_stopped_while_idle_costs_no_answer(node, client, kind):
    """Nobody is in the middle of a step: only the answer that never comes can tell."""
    prompt = "The days of the week are"
    expected = client.complete(prompt, 8).text
    assert wait_until(lambda: held(client.get("/v1/cluster")) == 0, 5)
    os.kill(rank_pid(node, kind), signal.SIGSTOP)
    answers = ask_at_once(node.port, [prompt] * 6, 8)
    assert [answer.text for answer in answers] == [expected] * 6
    assert wait_until(lambda: all_serve(client), 60)
    assert wait_until(lambda: held(client.get("/v1/cluster")) == 0, 5)


def all_serve(client: Client) -> bool:
    view = client.get("/v1/cluster")
    workers = all(worker["state"] == "serving" for worker in view["workers"])
    return workers and all(pool["up"] for pool in view["decode"])


def rank_pid(node: Daemon, kind: str) -> int:
    """A rank's process: the main thread of prefill ranks is bound to a core, the others' is not."""
    ranks = [
        pid
        for pid in children(node.process.pid)
        if b"host_helper" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert len(ranks) == 5
    bound = [pid for pid in ranks if len(os.sched_getaffinity(pid)) == 1]
    return bound[0] if kind == "prefill" else next(pid for pid in ranks if pid not in bound)


def test_the_metrics_count_what_happened(client):
    text = client.request("GET", "/metrics")[1].decode()
    assert 'vertumnus_worker_info{degree="2",worker="CP2[0-1]"} 1.0' in text
    assert "vertumnus_time_to_first_token_seconds_count" in text
    assert "vertumnus_controller_term 1.0" in text
