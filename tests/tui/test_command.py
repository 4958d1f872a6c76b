"""``vertumnusd tui`` as scripts and people start it."""

import asyncio
import json
import subprocess
import sys
import threading

import msgspec
import pytest
from screens import RECORDING, panel_at
from vertumnus_tui.arguments import PAGE_NAMES
from vertumnus_tui.panel import NAMES
from websockets.asyncio.server import unix_serve

from vertumnusd.__main__ import main
from vertumnusd.messages import FeedSnapshot

REPLAY = ("--replay", str(RECORDING))


def tui(*flags: str) -> int:
    return main(["tui", *flags])


def test_once_prints_the_page(capsys):
    at = ("--at", "22", "--page", "requests", "--size", "80x24")
    assert tui(*REPLAY, *at, "--once") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[1:] == panel_at(22.0, "requests").text(80, 24).splitlines()[1:]


def test_once_in_ascii(capsys):
    assert tui(*REPLAY, "--once", "--ascii", "--page", "history") == 0
    assert capsys.readouterr().out.isascii()


def test_json_prints_the_cluster(capsys):
    assert tui(*REPLAY, "--at", "22", "--json") == 0
    assert json.loads(capsys.readouterr().out) == panel_at(22.0).model.raw()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((*REPLAY, "--speed", "3"), "0.25, 0.5, 1"),
        ((*REPLAY, "--speed", "nan"), "0.25, 0.5, 1"),
        ((*REPLAY, "--at", "-1", "--once"), "0 or more"),
        ((*REPLAY, "--at", "nan", "--once"), "0 or more"),
        ((*REPLAY, "--admin"), "--replay goes with neither"),
        (("--once", "--json"), "not both"),
        (("--once", "--record", "x"), "--record follows"),
        ((*REPLAY, "--once", "--size", "big"), "80x24 to 999x999"),
        ((*REPLAY, "--once", "--size", "79x24"), "80x24 to 999x999"),
        (("--url", "ftp://x", "--once"), "ws://HOST:PORT"),
        (("--admin-token-file", "/no/such", "--once"), "/no/such"),
        (REPLAY, "this is no terminal"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_line_and_exit_2(flags, words, capsys):
    assert tui(*flags) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.startswith("vertumnusd tui: ")
    assert said.count("\n") == 1


def test_what_cannot_be_read_is_one_line_and_exit_1(tmp_path, capsys):
    assert tui("--replay", str(tmp_path / "none"), "--once") == 1
    assert tui("--socket", str(tmp_path / "none"), "--once") == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0].endswith("No such file or directory")
    assert said[1] == "vertumnusd tui: no node at its socket"


def test_pages_are_the_ones_of_the_panel():
    assert PAGE_NAMES == NAMES


def test_a_node_is_looked_at_once(tmp_path, capsys):
    path = tmp_path / "admin.sock"
    cluster = {"composition": "1CP2", "workers": []}
    snapshot = msgspec.json.encode(FeedSnapshot(1, 1.0, 0.0, cluster)).decode()
    ready, done = threading.Event(), threading.Event()

    async def node() -> None:
        async def answer(websocket) -> None:
            await websocket.send(snapshot)
            await websocket.wait_closed()

        async with unix_serve(answer, str(path)):
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(node()))
    thread.start()
    try:
        assert ready.wait(20)
        assert tui("--socket", str(path), "--json") == 0
    finally:
        done.set()
        thread.join()
    assert json.loads(capsys.readouterr().out) == cluster


@pytest.mark.ranks
def test_a_reader_that_leaves_early_is_no_fault():
    command = [sys.executable, "-m", "vertumnusd", "tui", "--replay", str(RECORDING), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert (process.stderr.read(), process.wait(30)) == (b"", 0)
