"""What splits and merges do to the KV of a whole daemon on real ranks: nothing.

But for a chain that lay on more homes than one of the new workers has; its first reuse mends that.

The pools are looked at from outside, through the daemon's descriptors of their memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import pytest
from harness import Client, Daemon, daemon

from vertumnusd import admin
from vertumnusd.admin_address import admin_socket_path

pytestmark = pytest.mark.ranks

BLOCK = 16
CLUSTER = {"ranks": 4, "cp_degrees": [1, 2, 4], "composition": "1CP4"}
BY_HAND = {"automatic": False}
QUIET = {"enabled": False}
PROMPT = "The god Vertumnus could change his form at will, and the seasons with it. " * 9
ORDERS = (  # between all degrees, there and back
    ("split", ["CP4[0-3]"]),
    ("split", ["CP2[0-1]"]),
    ("merge", ["CP1[0]", "CP1[1]"]),
    ("split", ["CP2[0-1]", "CP2[2-3]"]),
    ("merge", ["CP1[0]", "CP1[1]", "CP1[2]", "CP1[3]"]),
    ("merge", ["CP2[0-1]", "CP2[2-3]"]),
)


@pytest.fixture(scope="module")
def node(long_folder: Path) -> Iterator[Daemon]:
    with daemon(
        cluster=CLUSTER,
        model={"path": str(long_folder)},
        cache={"kv_tokens": 2_048, "decode_kv_tokens": 16_384},
        adaptation=BY_HAND,
        replication=QUIET,
    ) as running:
        yield running


def convert(node: Daemon, kind: str, workers: list[str]) -> None:
    operator = admin.Daemon.by_socket(admin_socket_path("", node.port))
    converted = operator.ask("POST", f"/v1/admin/{kind}", {"workers": workers})["converted"]
    assert {each["outcome"] for each in converted} == {"exposed"}


def copied_bytes(client: Client) -> dict[str, float]:
    """What the node's ranks copied of KV up to now."""
    lines = client.request("GET", "/metrics")[1].decode().splitlines()
    found = [line for line in lines if line.startswith("vertumnus_kv_copied_bytes_total{")]
    return {line.split('"')[1]: float(line.split()[-1]) for line in found}


def pools(node: Daemon) -> dict[str, bytes]:
    """A digest of the memory of every prefill rank's pool."""
    found = {}
    for path in Path(f"/proc/{node.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # a connection that was closed meanwhile
            name = os.readlink(path)
            if name.startswith("/memfd:vertumnus-kv-"):
                found[name.split()[0]] = blake2b(path.read_bytes()).digest()
    assert len(found) == CLUSTER["ranks"]
    return found


def test_the_first_reuse_of_a_pending_chain_moves_its_missing_blocks_and_later_ones_none(
    node: Daemon,
) -> None:
    """On four homes; after the split a worker of two has every other block."""
    prompt = "Pending. " * 380  # more than two of the pools hold
    with Client(node.port) as client:
        cold = client.complete(prompt, 4)
        assert (cold.facts["degree"], cold.cached_tokens) == (4, 0)
        convert(node, "split", ["CP4[0-3]"])
        blocks = (cold.input_tokens - 1) // BLOCK
        block_bytes = BLOCK * client.get("/v1/cluster")["kv_bytes_per_token"]
        before = copied_bytes(client)["prefill"]
        for _ in range(2):
            hit = client.complete(prompt, 4)
            assert (hit.text, hit.facts["degree"]) == (cold.text, 2)
            assert hit.cached_tokens == blocks * BLOCK
            assert copied_bytes(client)["prefill"] - before == blocks // 2 * block_bytes
        convert(node, "merge", ["CP2[0-1]", "CP2[2-3]"])


def test_no_byte_of_kv_moves_in_splits_and_merges_between_all_degrees(node: Daemon) -> None:
    with Client(node.port) as client:
        cold = [client.complete(f"{n}. {PROMPT}", 4) for n in range(6)]
        before, bytes_before = pools(node), copied_bytes(client)
        for kind, workers in ORDERS:
            convert(node, kind, workers)
            assert pools(node) == before
            assert copied_bytes(client) == bytes_before
        assert bytes_before["decode"] > 0  # the counter counts

        hits = [client.complete(f"{n}. {PROMPT}", 4) for n in range(6)]
    assert [hit.text for hit in hits] == [answer.text for answer in cold]
    assert all(hit.cached_tokens == (hit.input_tokens - 1) // BLOCK * BLOCK for hit in hits)
