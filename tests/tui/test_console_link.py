"""The way to a node: what is understood, what is said when it is not, and coming back."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from vertumnus_tui import link
from vertumnus_tui.link import Address, AddressError, Link, parse_address
from vertumnus_tui.model import Model
from vertumnus_tui.status import Live, Lost
from websockets.asyncio.server import serve, unix_serve

from vertumnusd.messages import FeedDelta, FeedSnapshot

SNAPSHOT = FeedSnapshot(1, 1.0, 0.0, {"composition": "1CP1", "epoch": 1, "workers": []})


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(link, "RETRY_S", (0.01,))


def text(frame) -> str:
    return msgspec.json.encode(frame).decode()


class Follower:
    """A console without a screen."""

    def __init__(self, address: Address) -> None:
        self.model = Model()
        self.statuses = []
        self._changed = asyncio.Event()
        self._link = Link(address, self._take, self._tell)

    def _take(self, frame) -> None:
        self.model.apply(frame)
        self._changed.set()

    def _tell(self, status) -> None:
        self.statuses.append(status)
        self._changed.set()

    async def until(self, condition) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def __aenter__(self) -> "Follower":
        self._task = asyncio.create_task(self._link.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("ws://10.0.0.1:8411", "ws://10.0.0.1:8411"),
        ("http://node-1", "ws://node-1:8000"),
        ("https://node-1", "wss://node-1:443"),
        ("ws://[::1]:9", "ws://[::1]:9"),
    ],
)
def test_addresses(written, shown):
    assert str(parse_address(written)) == shown


@pytest.mark.parametrize(
    "written", ["ftp://x", "ws://", "ws://x:99999", "ws://[::1", "host:80", "/a"]
)
def test_what_is_no_address_is_refused(written):
    with pytest.raises(AddressError, match="ws://"):
        parse_address(written)


def test_a_node_that_restarts_is_followed_again(tmp_path):
    path = tmp_path / "admin.sock"

    async def node(websocket) -> None:
        await websocket.send(text(SNAPSHOT))
        await websocket.send(text(FeedDelta(2, 2.0, {"epoch": 2})))
        await websocket.wait_closed()

    async def main() -> None:
        async with Follower(Address(socket=path)) as console:
            await console.until(lambda: Lost("no node at its socket", 0.01) in console.statuses)
            async with unix_serve(node, str(path)):
                await console.until(lambda: console.model.known and console.model.t == 2.0)
                assert console.statuses[-1] == Live()
            await console.until(lambda: isinstance(console.statuses[-1], Lost))
            assert console.model.cluster.epoch == 2  # the last picture stays
            path.unlink(missing_ok=True)
            before = len(console.statuses)
            async with unix_serve(node, str(path)):
                await console.until(lambda: Live() in console.statuses[before:])

    asyncio.run(main())


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (["{}"], "not understood"),
        (["nonsense"], "not understood"),
        ([text(FeedDelta(5, 1.0))], "not understood: frame 5 follows None"),
        ([text(SNAPSHOT), text(FeedDelta(3, 1.0))], "frame 3 follows 1"),
        ([text(FeedSnapshot(1, 1.0, 0.0, {"workers": 1}))], "no cluster"),
    ],
)
def test_nonsense_is_said_and_begun_anew(tmp_path, messages, words):
    path = tmp_path / "admin.sock"
    visits = []

    async def node(websocket) -> None:
        visits.append(1)
        for message in messages:
            await websocket.send(message)
        await websocket.wait_closed()

    async def main() -> None:
        async with unix_serve(node, str(path)), Follower(Address(socket=path)) as console:
            await console.until(lambda: len(visits) >= 3)
            reasons = [s.reason for s in console.statuses if isinstance(s, Lost)]
            assert words in reasons[0]

    asyncio.run(main())


def test_a_console_that_was_closed_tells_why(tmp_path):
    path = tmp_path / "admin.sock"

    async def node(websocket) -> None:
        await websocket.close(1013, "the console does not keep up")

    async def main() -> None:
        async with unix_serve(node, str(path)), Follower(Address(socket=path)) as console:
            expected = Lost("the console does not keep up", 0.01)
            await console.until(lambda: expected in console.statuses)

    asyncio.run(main())


def test_the_token_is_sent_and_its_lack_is_named():
    async def check(connection, request):
        if request.headers.get("Authorization") != "Bearer right":
            return connection.respond(401, "no")

    async def node(websocket) -> None:
        await websocket.send(text(SNAPSHOT))
        await websocket.wait_closed()

    async def main() -> None:
        async with serve(node, "127.0.0.1", 0, process_request=check) as server:
            port = server.sockets[0].getsockname()[1]
            async with Follower(parse_address(f"ws://127.0.0.1:{port}")) as console:
                await console.until(
                    lambda: any("token" in s.reason for s in console.statuses if type(s) is Lost)
                )
            async with Follower(parse_address(f"ws://127.0.0.1:{port}", "right")) as console:
                await console.until(lambda: Live() in console.statuses)

    asyncio.run(main())


def test_something_else_behind_the_socket_is_no_node(tmp_path):
    path = tmp_path / "other.sock"

    async def other(reader, writer) -> None:
        writer.write(b"SSH-2.0-x\r\n")
        writer.close()

    async def main() -> None:
        server = await asyncio.start_unix_server(other, str(path))
        async with server, Follower(Address(socket=Path(path))) as console:
            await console.until(lambda: any(type(s) is Lost for s in console.statuses))

    asyncio.run(main())
