"""Signals while a worker is converted or a prefix copied: a whole daemon on virtual time.

One signal lets every answer end: the operation under way goes on, or is given up at its deadline,
and the controller begins no other by itself. A second one ends all of it at once.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import fake_host
import pytest
import trio
import trio.testing
from fake_host import FakeHost, configuration, served

from vertumnusd.control.settings import ReconfigurationSettings
from vertumnusd.messages import Adopted, Parked, StepDone
from vertumnusd.node import daemon as daemon_module
from vertumnusd.node.admin import AdminToken
from vertumnusd.node.daemon import CUT_OFF_S, EXIT_DONE, EXIT_FAULT, Daemon
from vertumnusd.node.keys import Keys

CLIENTS, TOKENS = 8, 5
WHILE_S = 2.0  # that the messages of ranks are held back after the signal
Clock = trio.testing.MockClock
LIMIT_S = 60.0  # of virtual time, for anything
PROMPT = "The god Vertumnus could change his form at will, and the seasons with it."
BY_HAND = ReconfigurationSettings(automatic=False)
EAGER = ReconfigurationSettings(  # to split whatever comes, at the end of each window
    judge_by="demand",
    window_s=1.0,
    split_above=0.01,
    merge_below=0.001,
    hold_windows=1,
    min_requests=1,
    confidence=0.01,
    dwell_s=0.0,
)
SPLIT = {"workers": ["CP2[0-1]", "CP2[2-3]"]}  # all there are: who waits, waits for its end


class Node:
    """A daemon that serves, its clients, and the time."""

    def __init__(self, daemon: Daemon, port: int, clock: Clock) -> None:
        self.port = port
        self.host: FakeHost = daemon._ranks  # type: ignore[assignment]
        self.hub = daemon._hub
        self.answers: list[tuple[int, dict[str, Any]]] = []
        self.status: int | None = None
        self._daemon = daemon
        self._admin_socket = daemon._config.node.admin_socket
        self._clock = clock

    async def run(self) -> None:
        self.status = await self._daemon.run()

    async def until(self, true: Callable[[], bool]) -> None:
        """Let time pass, a little whenever nothing else can happen."""
        limit = trio.current_time() + LIMIT_S
        while True:
            await trio.testing.wait_all_tasks_blocked(0.001)
            if true():
                return
            assert trio.current_time() < limit, self.hub.snapshot()
            self._clock.jump(0.05)

    async def pass_time(self, seconds: float) -> None:
        end = trio.current_time() + seconds
        await self.until(lambda: trio.current_time() >= end)

    async def ask(self, prompt: str) -> None:
        body = {"prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True}
        self.answers.append(await self.post("/v1/completions", body))

    async def order_split(self) -> None:
        """As ``vertumnusd split`` does; it waits for the end as long as there is a node."""
        async with await trio.open_unix_socket(self._admin_socket) as stream:
            await stream.send_all(request_of("/v1/admin/split", SPLIT))
            with suppress(trio.BrokenResourceError):
                async for _ in stream:
                    pass

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            await stream.send_all(request_of(path, body))
            text = b"".join([chunk async for chunk in stream])
        head, _, answer = text.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(answer)

    def phases(self) -> list[str]:
        return [operation["phase"] for operation in self.hub.snapshot()["operations"]]

    def is_over(self) -> bool:
        return self.status is not None


def request_of(path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


@pytest.fixture
async def node(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nursery: trio.Nursery,
    mock_clock: Clock,
) -> AsyncIterator[Node]:
    """A parameter says how its composition follows the load; without one it does not."""
    monkeypatch.setattr(daemon_module, "RankHost", FakeHost)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = configuration(port=port, admin_socket=str(tmp_path / "admin"))
    adaptation = getattr(request, "param", BY_HAND)
    daemon = Daemon(config, config, served(adaptation), Keys(), AdminToken(), lambda: config)
    node = Node(daemon, port, mock_clock)
    nursery.start_soon(node.run)
    await node.until(lambda: daemon.served)
    yield node
    assert not (tmp_path / "admin").exists()


def ask_all(node: Node, nursery: trio.Nursery) -> None:
    for n in range(CLIENTS):
        nursery.start_soon(node.ask, f"{n}: {PROMPT}")


def holds(kind: type, *ranks: int) -> Callable[[Any], bool]:
    return lambda message: isinstance(message, kind) and message.rank in ranks


HELD = {  # in which phase a split stays while these messages wait
    "drain": holds(StepDone, 0, 1, 2, 3),
    "park": holds(Parked, 1, 3),
    "adopt": holds(Adopted, 0, 1, 2, 3),
    "adopt, all but one": holds(Adopted, 1, 3),
}


async def split_up_to(node: Node, nursery: trio.Nursery, phase: str) -> None:
    """Everybody asks, and the splits stay in this phase."""
    node.host.held = HELD["drain"]
    ask_all(node, nursery)
    await node.until(lambda: len(node.hub.snapshot()["requests"]) == CLIENTS)
    nursery.start_soon(node.order_split)
    await node.until(lambda: node.phases() == ["drain"] * 2)
    node.host.held = HELD[phase]
    await node.until(lambda: node.phases() == [phase.partition(",")[0]] * 2)


async def copy_a_prefix(node: Node, nursery: trio.Nursery) -> None:
    """Everybody asks the same, and the copies for the other worker do not end."""
    nursery.start_soon(node.ask, PROMPT)
    await node.until(lambda: len(node.answers) == 1)
    node.answers.clear()
    node.host.copying = False
    for n in range(CLIENTS):
        nursery.start_soon(node.ask, f"{PROMPT} {n}")
    await node.until(lambda: bool(node.hub.snapshot()["transfers"]))


def stop(node: Node) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def assert_all_answered(node: Node) -> None:
    assert [status for status, _ in node.answers] == [200] * CLIENTS
    assert {answer["usage"]["completion_tokens"] for _, answer in node.answers} == {TOKENS}
    assert node.status == EXIT_DONE


@pytest.mark.parametrize("phase", HELD)
async def test_one_signal_in_any_phase_lets_splits_and_answers_end(
    node: Node, nursery: trio.Nursery, mock_clock: Clock, phase: str
) -> None:
    await split_up_to(node, nursery, phase)
    stop(node)
    await node.pass_time(WHILE_S)
    assert node.status is None
    node.host.held = fake_host.nothing
    await node.until(node.is_over)
    assert_all_answered(node)
    assert node.hub.idle()


@pytest.mark.parametrize(("phase", "kind"), [("park", Parked), ("adopt", Adopted)])
async def test_one_signal_and_a_rank_that_never_answers_give_the_splits_up(
    node: Node, nursery: trio.Nursery, mock_clock: Clock, phase: str, kind: type
) -> None:
    await split_up_to(node, nursery, phase)
    epoch = node.hub.snapshot()["epoch"]
    node.host.lost = lambda m: isinstance(m, kind) and m.epoch <= epoch
    node.host.held = fake_host.nothing
    stop(node)
    await node.until(node.is_over)
    assert_all_answered(node)
    assert node.phases() == []
    assert node.hub.snapshot()["composition"] == "2CP2"


@pytest.mark.parametrize("phase", HELD)
async def test_two_signals_in_any_phase_end_the_node_at_once(
    node: Node, nursery: trio.Nursery, mock_clock: Clock, phase: str
) -> None:
    await split_up_to(node, nursery, phase)
    await stop_twice(node)


@pytest.mark.parametrize("node", [EAGER], indirect=True)
@pytest.mark.parametrize("stopped", [False, True])
async def test_after_one_signal_the_composition_follows_the_load_no_more(
    node: Node, nursery: trio.Nursery, mock_clock: Clock, stopped: bool
) -> None:
    node.host.held = HELD["drain"]
    ask_all(node, nursery)
    await node.until(lambda: len(node.hub.snapshot()["requests"]) == CLIENTS)
    if stopped:
        stop(node)
    await node.pass_time(2 * EAGER.window_s)
    assert bool(node.phases()) == (not stopped)
    if not stopped:
        stop(node)
    node.host.held = fake_host.nothing
    await node.until(node.is_over)
    assert_all_answered(node)


@pytest.mark.parametrize("copied", [True, False])
async def test_one_signal_while_a_prefix_is_copied_lets_every_answer_end(
    node: Node, nursery: trio.Nursery, mock_clock: Clock, copied: bool
) -> None:
    await copy_a_prefix(node, nursery)
    stop(node)
    await node.pass_time(WHILE_S)
    assert node.status is None
    node.host.copying = copied  # else it is given up at its deadline
    await node.until(node.is_over)
    assert_all_answered(node)


async def test_two_signals_while_a_prefix_is_copied_end_the_node_at_once(
    node: Node, nursery: trio.Nursery, mock_clock: Clock
) -> None:
    await copy_a_prefix(node, nursery)
    await stop_twice(node)


async def stop_twice(node: Node) -> None:
    """Who still waits is told so, and nobody waits for the operation or the copy."""
    stop(node)
    await node.pass_time(WHILE_S)
    assert node.status is None
    stop(node)
    began = trio.current_time()
    await node.until(node.is_over)
    assert trio.current_time() - began <= CUT_OFF_S
    assert node.status == EXIT_FAULT
    await node.until(lambda: len(node.answers) == CLIENTS)
    assert {status for status, _ in node.answers} <= {200, 503}
    assert 503 in {status for status, _ in node.answers}
