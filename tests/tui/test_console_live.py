"""The console on a daemon with paced ranks: followed, changed, recorded, killed, and met again."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from harness import Daemon, ask_at_once, daemon
from vertumnus_tui.admin import AdminError, action_on, carry_out, consequences, plan
from vertumnus_tui.link import Address
from vertumnus_tui.model import Model
from vertumnus_tui.panel import NAMES, Panel
from vertumnus_tui.playback import Player, Recorder, read_recording
from vertumnus_tui.source import LiveSource, ReplaySource
from vertumnus_tui.status import Live, Lost

from vertumnusd.messages import HASH_BYTES
from vertumnusd.node.hashing import chain

pytestmark = pytest.mark.ranks

PATIENCE_S = 30.0
SECTIONS = {
    "model": {"profile": "q3", "name": "paced"},
    "cluster": {"ranks": 4, "cp_degrees": [1, 2], "composition": "2CP2"},
    "cache": {"block_tokens": 16, "kv_tokens": 65536, "decode_kv_tokens": 65536},
    "rank": {"device": "paced", "pace": 0.2, "step_s": 0.01},
    "adaptation": {"automatic": False},
}
Use = Callable[[LiveSource], Awaitable[None]]


def serving(socket: Path) -> AbstractContextManager[Daemon]:
    return daemon(**SECTIONS, node={"admin_socket": str(socket)})


@pytest.fixture(scope="module")
def node(tmp_path_factory) -> Iterator[tuple[Daemon, Address]]:
    socket = tmp_path_factory.mktemp("node") / "admin.sock"
    with serving(socket) as running:
        yield running, Address(socket=socket)


def follow(source: LiveSource, use: Use) -> None:
    async def main() -> None:
        running = asyncio.create_task(source.run())
        try:
            await use(source)
        finally:
            running.cancel()
            await asyncio.wait([running])

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 (a model tells nobody of its changes)
            await asyncio.sleep(0.05)


def names(model: Model) -> list[str]:
    return [worker.name for worker in model.cluster.workers]


def labels(model: Model) -> list[str]:
    return [event.about.label for event in model.events]


async def order(source: LiveSource, kind: str, selected: str = "") -> dict[str, str]:
    """As the keys do it: what would be asked, and then done."""
    model = source.model
    action = action_on(kind, selected, model.cluster, model.t)
    facts = dict(consequences(action, await plan(source.address, action), model.cluster))
    await carry_out(source.address, action)
    return facts


def test_every_order_is_carried_out_and_seen(node):
    async def use(source: LiveSource) -> None:
        model = source.model
        await until(lambda: model.known)
        facts = await order(source, "split", "worker CP2[0-1]")
        assert facts["afterwards"] == "1CP2/2CP1"
        await until(lambda: names(model) == ["CP1[0]", "CP1[1]", "CP2[2-3]"])
        await order(source, "merge", "worker CP1[1]")
        await until(lambda: names(model) == ["CP2[0-1]", "CP2[2-3]"])
        await order(source, "drain", "worker CP2[2-3]")
        await until(lambda: [d.drained for d in model.cluster.drains] == [True])
        assert "out of service" in Panel(model).text(80, 24)
        await order(source, "undrain", "worker CP2[2-3]")
        await order(source, "hold")
        await until(lambda: model.cluster.adaptation.held_until is not None)
        assert model.cluster.adaptation.held_by
        await order(source, "hold")
        await until(lambda: "hold ended" in labels(model))
        await until(lambda: not model.cluster.drains)
        assert {"converting", "converted", "drained", "held"} <= set(labels(model))

    follow(LiveSource(node[1]), use)


def test_a_prefix_is_reclaimed_from_the_ranks(node):
    tokens = [(7 * n) % 256 for n in range(64)]
    ask_at_once(node[0].port, [tokens], 1)
    name = chain(tokens, 16, b"")[-HASH_BYTES:].hex()[:8]

    async def use(source: LiveSource) -> None:
        model = source.model
        await until(lambda: model.known and model.cluster.prefixes["blocks"] >= 4)
        before = model.cluster.prefixes["blocks"]
        facts = await order(source, "reclaim", f"prefix {name}")
        assert [value for key, value in facts.items() if key.startswith("home")] == [
            "4 blocks, 64 tokens"
        ]
        await until(lambda: model.cluster.prefixes["blocks"] == before - 4)
        assert "reclaimed" in labels(model)
        with pytest.raises(AdminError, match=f"no home holds a prefix {name}"):
            await order(source, "reclaim", f"prefix {name}")

    follow(LiveSource(node[1]), use)


def test_a_run_is_recorded_and_played(node, tmp_path):
    path = tmp_path / "run.jsonl"

    async def use(source: LiveSource) -> None:
        await until(lambda: source.model.known)
        prompts = [f"{n} and a few words more " * 30 for n in range(8)]
        await asyncio.to_thread(ask_at_once, node[0].port, prompts, 4)
        begun = source.model.t
        await until(lambda: source.model.t > begun + 2.0)

    follow(LiveSource(node[1], Recorder(path)), use)
    source = ReplaySource(Player(read_recording(path)))
    source.player.seek(1e9)
    assert labels(source.model).count("placed") >= 8
    assert source.player.trouble == ""
    panel = Panel(source.model)
    panel.status = source.status
    for name in NAMES:
        panel.go(name)
        assert "paced" in panel.text(100, 30).splitlines()[0]


def test_a_node_that_is_killed_is_told_and_its_successor_is_followed(tmp_path):
    socket = tmp_path / "admin.sock"

    async def use(source: LiveSource) -> None:
        with serving(socket) as first:
            await until(lambda: isinstance(source.status, Live))
            first.process.send_signal(signal.SIGKILL)
            await until(lambda: isinstance(source.status, Lost))
            panel = Panel(source.model)
            panel.status = source.status
            assert "this is how it was at" in panel.text(80, 24)
            assert names(source.model) == ["CP2[0-1]", "CP2[2-3]"]
        with serving(socket):
            await until(lambda: "restarted" in labels(source.model))
            assert isinstance(source.status, Live)
            await until(lambda: all(w.state == "serving" for w in source.model.cluster.workers))

    follow(LiveSource(Address(socket=socket)), use)
