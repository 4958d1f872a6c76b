"""How a daemon starts, refuses to start, and ends."""

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness import Client, ask, daemon

pytestmark = pytest.mark.ranks

SMALL = {"ranks": 2, "cp_degrees": [1, 2], "composition": "1CP2"}


def serve(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vertumnusd", "serve", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_port_in_use_is_exit_3_before_weights_load():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = serve("--port", str(taken.getsockname()[1]))
    assert ended.returncode == 3
    assert "in use" in ended.stderr
    assert "loading" not in ended.stderr


def test_a_missing_model_is_exit_2():
    ended = serve("no/such/model.gguf")
    assert ended.returncode == 2
    assert "no/such/model.gguf" in ended.stderr


def test_a_wrong_key_is_exit_2_with_the_nearest_known_one(tmp_path):
    path = tmp_path / "node.toml"
    path.write_text("[node]\nprot = 8000\n")
    ended = serve("--config", str(path))
    assert ended.returncode == 2
    assert "did you mean port?" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["serve", "--prot", "1"], "--port"),
        (["server"], "serve"),
        ([], "command"),
        (["config", "check", "/no/such"], "No such file"),
    ],
)
def test_wrong_usage_is_exit_2_with_the_nearest_known_word(arguments, word):
    command = [sys.executable, "-m", "vertumnusd", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    assert word in ended.stderr


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def children(pid: int) -> list[int]:
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def all_end(pids: list[int], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(alive(pid) for pid in pids)


def test_sigterm_lets_running_answers_end_and_leaves_no_process():
    with daemon(cluster=SMALL) as node:
        pids = children(node.process.pid)
        assert len(pids) == 4  # two prefill ranks, a decode rank, the host helper
        with ThreadPoolExecutor(1) as pool, Client(node.port) as watch:
            answer = pool.submit(ask, node.port, "Once upon a time", 40)
            while not watch.get("/v1/cluster")["requests"]:
                time.sleep(0.01)
            node.process.send_signal(signal.SIGTERM)
            assert answer.result(30).facts["worker"] == "CP2[0-1]"
        assert node.process.wait(30) == 0
        assert all_end(pids, 5)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_ranks_die_with_their_daemon_whatever_ends_it(how):
    with daemon(cluster=SMALL) as node:
        pids = children(node.process.pid)
        os.kill(node.process.pid, how)
        node.process.wait(30)
        assert all_end(pids, 10)


def test_homes_of_two_ranks_answer_like_homes_of_one():
    prompt = "The quick brown fox jumps over the lazy dog. " * 20
    texts = []
    for cluster in (
        {"ranks": 2, "cp_degrees": [2], "home_ranks": 2},
        {"ranks": 2, "cp_degrees": [2], "home_ranks": 1},
    ):
        with daemon(cluster=cluster) as node, Client(node.port) as client:
            cold, hit = client.complete(prompt, 8), client.complete(prompt, 8)
            assert hit.cached_tokens == (hit.input_tokens - 1) // 16 * 16
            texts += [cold.text, hit.text]
    assert len(set(texts)) == 1


def test_prompts_beyond_the_kv_capacity_are_refused_and_others_served():
    small = {"kv_tokens": 256, "decode_kv_tokens": 256}
    with daemon(cluster={"ranks": 1}, cache=small) as node, Client(node.port) as client:
        with pytest.raises(RuntimeError, match="256"):
            client.complete([5] * 300)
        for i in range(4):  # more than fits: the oldest prefixes make room
            assert client.complete([100 + i] * 200, 2).cached_tokens == 0
        assert client.complete([103] * 200, 2).cached_tokens == 192


def test_a_prefix_belongs_to_its_api_key(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("alpha\nbeta\n")
    prompt = list(range(100, 164))
    with (
        daemon(cluster={"ranks": 1}, node={"api_key_file": str(keys)}) as node,
        Client(node.port) as nobody,
        Client(node.port, "alpha") as alpha,
        Client(node.port, "beta") as beta,
    ):
        with pytest.raises(RuntimeError, match="401"):
            nobody.complete(prompt)
        assert alpha.complete(prompt).cached_tokens == 0
        assert alpha.complete(prompt).cached_tokens == 48
        assert beta.complete(prompt).cached_tokens == 0
