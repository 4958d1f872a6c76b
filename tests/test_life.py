"""How a daemon starts, refuses to start, and ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness import Client, Daemon, ask, children, daemon

from vertumnusd import admin
from vertumnusd.admin_address import admin_socket_path

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
        (
            ["status", "--port", "8000"],
            "vertumnusd status: unrecognized arguments: --port 8000; known are: --api-key-file",
        ),
        (["undrain", "all", "--dry-run"], "known are: --admin-token-file, --help, --json, --port"),
        (["hold", "--for", "nan"], "a time such as 90s, 30m or 2h is expected, 720h at most"),
        (["hold", "--for", "1000h"], "720h at most"),
        ([], "command"),
        (["config", "check", "/no/such"], "No such file"),
    ],
)
def test_wrong_usage_is_exit_2_with_the_nearest_known_word(arguments, word):
    command = [sys.executable, "-m", "vertumnusd", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    assert word in ended.stderr


def test_a_full_disk_below_the_output_is_one_line_and_exit_1():
    command = [sys.executable, "-m", "vertumnusd", "config", "show"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=30, check=False
        )
    assert ended.returncode == 1
    assert ended.stderr == "vertumnusd config: [Errno 28] No space left on device\n"


def test_a_reader_who_has_seen_enough_is_no_error():
    command = [sys.executable, "-m", "vertumnusd", "config", "show"]
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as nobody:
        ended = subprocess.run(
            command, stdout=nobody, stderr=subprocess.PIPE, text=True, timeout=30, check=False
        )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_pools_larger_than_the_memory_are_exit_2(tmp_path):
    path = tmp_path / "node.toml"
    path.write_text("[cache]\nkv_tokens = 1000000000000\n")
    ended = serve("--config", str(path), "--port", "0")
    assert ended.returncode == 2
    assert "cache.kv_tokens = 1000000000000" in ended.stderr
    assert "GiB are available" in ended.stderr


TINY = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}


@pytest.mark.parametrize("tokenizer", [None, "{"])
def test_a_folder_without_a_usable_tokenizer_is_exit_2(tmp_path, tokenizer):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "model.safetensors").touch()
    if tokenizer is not None:
        (tmp_path / "tokenizer.json").write_text(tokenizer)
    ended = serve(str(tmp_path), "--port", "0")
    assert ended.returncode == 2
    assert "tokenizer.json" in ended.stderr
    assert "Traceback" not in ended.stderr


@contextmanager
def notified_daemon(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """A daemon that starts, and the service manager's end of its notifications."""
    address = str(tmp_path / "notify")
    command = [sys.executable, "-m", "vertumnusd", "serve", "--port", "0"]
    environment = {**os.environ, "NOTIFY_SOCKET": address}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(60)
        process = subprocess.Popen([*command, "--log-level", "warning"], env=environment)
        try:
            yield process, manager
        finally:
            process.kill()
            process.wait()


def notices_until(manager: socket.socket, word: str) -> list[str]:
    """What the manager hears, up to the first message with ``word``; no heartbeats."""
    heard = [manager.recv(4096).decode()]
    while word not in heard[-1]:
        heard.append(manager.recv(4096).decode())
    return [text for text in heard if text != "WATCHDOG=1"]


def test_the_service_manager_hears_ready_only_when_the_node_serves(tmp_path):
    with notified_daemon(tmp_path) as (process, manager):
        notices_until(manager, "loading weights")
        process.send_signal(signal.SIGHUP)
        before = notices_until(manager, "serving")
        assert [text for text in before if "READY=1" in text] == before[-1:]

        process.send_signal(signal.SIGHUP)
        assert "RELOADING=1" in notices_until(manager, "\nMONOTONIC_USEC=")[-1]
        notices_until(manager, "READY=1")
        process.send_signal(signal.SIGTERM)
        notices_until(manager, "STOPPING=1")
        assert process.wait(30) == 0


def test_sigterm_while_weights_load_is_a_clean_end(tmp_path):
    with notified_daemon(tmp_path) as (process, manager):
        notices_until(manager, "loading weights")
        pids = children(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert all_end(pids, 5)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


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


@pytest.mark.parametrize("signals", [1, 2])
def test_answers_that_are_cut_off_at_shutdown_end_with_an_error(signals):
    """By the end of ``drain_s``, or by a second signal."""
    drain_s = 1.0 if signals == 1 else 60.0
    body = json.dumps({"prompt": [5], "max_tokens": 6000, "ignore_eos": True}).encode()
    with daemon(cluster=SMALL, node={"drain_s": drain_s}) as node:
        with ThreadPoolExecutor(1) as pool, Client(node.port) as client, Client(node.port) as watch:
            answer = pool.submit(client.request, "POST", "/v1/completions", body)
            while not watch.get("/v1/cluster")["requests"]:
                time.sleep(0.01)
            node.process.send_signal(signal.SIGTERM)
            if signals == 2:
                while watch.request("GET", "/health")[0] == 200:
                    time.sleep(0.01)
                node.process.send_signal(signal.SIGTERM)
            status, text = answer.result(30)
        assert status == 503
        assert json.loads(text)["error"]["code"] == "service_unavailable"
        assert node.process.wait(30) == 1


PACED = {"device": "paced", "pace": 0.15, "progress_timeout_s": 60.0}


def phase(client: Client) -> str:
    operations = client.get("/v1/cluster")["operations"]
    return operations[0]["phase"] if operations else "none"


@contextmanager
def splitting(node: Daemon, client: Client, wanted: str) -> Iterator[None]:
    """Inside, the split of the only worker is in this phase; somebody waits for its end."""
    operator = admin.Daemon.by_socket(admin_socket_path("", node.port))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(operator.ask, "POST", "/v1/admin/split", {"workers": ["CP2[0-1]"]})
        while phase(client) != wanted:
            time.sleep(0.01)
        yield


def test_sigterm_in_the_drain_of_a_split_lets_what_runs_end():
    with daemon(cluster=SMALL, rank=PACED) as node, Client(node.port) as watch:
        pids = children(node.process.pid)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(ask, node.port, "Once upon a time. " * 400, 3)
            while not any(r["layers_done"] for r in watch.get("/v1/cluster")["requests"]):
                time.sleep(0.01)
            with splitting(node, watch, "drain"):
                node.process.send_signal(signal.SIGTERM)
                assert answer.result(30).facts["worker"] == "CP2[0-1]"
        assert_ended(node, pids, status=0)


@pytest.mark.parametrize("signals", [1, 2])
def test_sigterm_while_a_rank_does_not_park_ends_the_node(signals):
    """Nobody is asked for anything, so one signal is enough; two do not wait for the rank."""
    with daemon(cluster=SMALL, rank=PACED) as node, Client(node.port) as watch:
        pids = children(node.process.pid)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        with splitting(node, watch, "park"), ThreadPoolExecutor(signals - 1 or 1) as pool:
            answers = [pool.submit(ask, node.port, "Hello") for _ in range(signals - 1)]
            while len(watch.get("/v1/cluster")["requests"]) < len(answers):
                time.sleep(0.01)
            node.process.send_signal(signal.SIGTERM)
            if signals == 2:
                while watch.request("GET", "/health")[0] == 200:
                    time.sleep(0.01)
                node.process.send_signal(signal.SIGTERM)
            for answer in answers:
                with pytest.raises(RuntimeError, match="503"):
                    answer.result(30)
        assert_ended(node, pids, status=signals - 1)


def assert_ended(node: Daemon, pids: list[int], status: int) -> None:
    """With them goes their memory, which has no name anywhere; the admin socket has one."""
    assert node.process.wait(30) == status
    assert all_end(pids, 5)
    assert not admin_socket_path("", node.port).exists()


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
