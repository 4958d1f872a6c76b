"""The composition of a serving daemon changes: real ranks, a small model, and its operators."""

import json
import os
import random
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from harness import DOCUMENT, Client, Daemon, ask, children, daemon

pytestmark = pytest.mark.ranks

CLUSTER = {"ranks": 4, "cp_degrees": [1, 2, 4], "composition": "1CP4"}
BY_HAND = {"automatic": False}
PAIRS = (("CP1[0]", "CP1[1]"), ("CP1[2]", "CP1[3]"), ("CP2[0-1]", "CP2[2-3]"))


@pytest.fixture(scope="module")
def node():
    with daemon(cluster=CLUSTER, rank={"step_s": 0.02}, adaptation=BY_HAND) as running:
        yield running


@pytest.fixture
def client(node):
    with Client(node.port) as connected:
        yield connected


def operate(node: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vertumnusd", *words, "--port", str(node.port)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def names(client: Client) -> list[str]:
    return [worker["name"] for worker in client.get("/v1/cluster")["workers"]]


def convert_at_random(node: Daemon, client: Client, dice: random.Random) -> str:
    """Split or merge something that can be; what the command printed."""
    there = names(client)
    splits = [("split", name) for name in there if not name.startswith("CP1[")]
    merges = [("merge", *pair) for pair in PAIRS if set(pair) <= set(there)]
    return operate(node, *dice.choice(splits + merges)).stdout


def base_line(node: Daemon, client: Client) -> dict[str, int]:
    """What must come back: blocks held, requests known, descriptors and tasks of the daemon."""
    view = client.get("/v1/cluster")
    pid = node.process.pid
    return {
        "pinned": sum(home["pinned_blocks"] + home["reserved_blocks"] for home in view["homes"]),
        "decode": sum(pool["kv_blocks"] - pool["free_blocks"] for pool in view["decode"]),
        "requests": len(view["requests"]) + view["waiting"]["requests"],
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "rank descriptors": sum(len(os.listdir(f"/proc/{p}/fd")) for p in children(pid)),
        "processes": len(children(pid)),
    }


def quiet_base_line(node: Daemon, client: Client) -> dict[str, int]:
    """Once nobody waits for anything; the last answer leaves a moment before its blocks do."""
    deadline = time.monotonic() + 10
    while (found := base_line(node, client))["requests"] and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def test_answers_are_those_of_a_quiet_cluster_while_workers_split_and_merge(node, client):
    dice = random.Random(1)
    prompts = [
        DOCUMENT[start : start + dice.choice((60, 400, 1600))] + f" {start}"
        for start in dice.choices(range(2000), k=16)
    ]
    quiet = [client.complete(prompt, 6).text for prompt in prompts]
    printed = []
    with ThreadPoolExecutor(4) as pool:
        futures: list[Future] = [pool.submit(ask, node.port, prompt, 6) for prompt in prompts]
        while not all(future.done() for future in futures) or len(printed) < 6:
            printed.append(convert_at_random(node, client, dice))
    answers = [future.result() for future in futures]

    assert [answer.text for answer in answers] == quiet
    assert all("switched in" in line for line in printed), printed
    assert len({answer.facts["degree"] for answer in answers}) > 1


def test_conversions_leave_nothing_behind(node, client):
    """After the first ones: a rank opens some descriptors when it first needs them."""
    dice = random.Random(3)
    before = quiet_base_line(node, client)
    for n in range(12):
        convert_at_random(node, client, dice)
        client.complete(f"Nothing left behind, {n}.", 2)
    assert quiet_base_line(node, client) == before


def test_a_prefix_survives_conversions_where_it_is(node, client):
    prompt = "Survivors. " + DOCUMENT[:1500]
    first = client.complete(prompt, 8)
    dice = random.Random(2)
    for _ in range(4):
        convert_at_random(node, client, dice)
        again = client.complete(prompt, 8)
        assert again.cached_tokens == (again.input_tokens - 1) // 16 * 16
        assert again.text == first.text


def test_an_order_that_cannot_be_carried_out_says_why(node, client):
    while "CP4[0-3]" not in names(client):
        there = set(names(client))
        operate(node, "merge", *next(pair for pair in PAIRS if set(pair) <= there))
    for words, reason in (
        (("split", "CP2[0-1]"), "there are CP4[0-3]"),
        (("merge", "CP4[0-3]"), "largest degree"),
        (("split", "CP4[0-3]", "--socket", "/no/such"), "no daemon listens at /no/such"),
    ):
        ended = operate(node, *words)
        assert (ended.returncode, ended.stdout) == (1, "")
        assert reason in ended.stderr
    planned = operate(node, "split", "CP4[0-3]", "--dry-run", "--json")
    assert json.loads(planned.stdout)["planned"][0]["after"] == ["CP2[0-1]", "CP2[2-3]"]
    assert names(client) == ["CP4[0-3]"]


def test_a_drained_worker_is_left_alone_until_it_is_given_back(node, client):
    while "CP4[0-3]" in (there := names(client)) or len(there) < 2:
        operate(node, "split", there[0])
    first = there[0]
    assert f"{first}: drained in" in operate(node, "drain", first).stdout
    for n in range(3):
        assert client.complete(f"Drained {n}.", 2).facts["worker"] != first
    refused = operate(node, "split", first)
    assert f"{first} does not serve, it is draining" in refused.stderr
    assert operate(node, "undrain", "all").stdout == f"serving again: {first}\n"


def test_all_workers_drained_is_unready(node, client):
    assert operate(node, "drain", "all").returncode == 0
    status, body = client.request("GET", "/health")
    assert (status, json.loads(body)["reason"]) == (503, "no worker serves")
    assert operate(node, "undrain", "all").returncode == 0
    assert client.request("GET", "/health")[0] == 200


def test_why_prints_terms(node, client):
    body = json.dumps({"prompt": "Why?", "max_tokens": 2}).encode()
    name = json.loads(client.request("POST", "/v1/completions", body)[1])["id"]
    printed = operate(node, "why", name).stdout
    assert "placed on CP" in printed
    assert "β·Ê" in printed
    assert "finished (" in printed
    assert "ordered by hand" in operate(node, "why", "last-reconfiguration").stdout
    assert "there was none yet" in operate(node, "why", "last-decision").stdout
    assert "no request 'nobody'" in operate(node, "why", "nobody").stderr


def test_a_hold_is_seen(node, client):
    assert operate(node, "hold", "--for", "30m").returncode == 0
    assert client.get("/v1/cluster")["adaptation"]["held_until"] is not None
    assert operate(node, "hold", "--for", "0").returncode == 0
    assert client.get("/v1/cluster")["adaptation"]["held_until"] is None
    assert operate(node, "hold", "--for", "soon").returncode == 2


def test_the_trie_claims_what_the_ranks_hold(node, client):
    client.complete("An audit. " + DOCUMENT[:800], 2)
    quiet_base_line(node, client)
    ended = operate(node, "audit", "--json")
    assert ended.returncode == 0
    ranks = json.loads(ended.stdout)["ranks"]
    assert sum(rank["held_blocks"] for rank in ranks) > 0
    assert all(rank["wrong_blocks"] == rank["unknown_blocks"] == 0 for rank in ranks)


def test_metrics_count_conversions(client):
    text = client.request("GET", "/metrics")[1].decode()
    assert 'vertumnus_reconfigurations_total{kind="split",result="exposed"}' in text
    assert 'vertumnus_reconfigurations_total{kind="merge",result="rolled back"} 0.0' in text
    assert 'vertumnus_reconfiguration_seconds_bucket{le="0.05",stage="switch"}' in text


def test_the_admin_socket_goes_with_its_daemon(tmp_path):
    path = tmp_path / "admin.sock"
    with daemon(cluster={"ranks": 1}, node={"admin_socket": str(path)}) as node:
        assert path.is_socket()
        ended = operate(node, "split", "CP1[0]", "--socket", str(path))
        assert "1 is the least degree" in ended.stderr
    assert not path.exists()
