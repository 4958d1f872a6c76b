"""Plays a trace to a live cluster: each request at its time, over a connection of its own.

Connections are kept for later requests: on a machine of two cores, opening one for each would take
from the cluster what is to be measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import shake_128
from pathlib import Path

import h11
import msgspec
import trio

from vertumnusd.live.cluster import LiveCluster
from vertumnusd.simulate.traces import BLOCK_TOKENS, Arrival

CONNECTIONS = 1900  # at once: a node takes 2,000, and somebody may look at it
READ_BYTES = 65_536
IDLE_S = 30.0  # a node closes connections that are idle for longer than this, and more
POLL_S = 0.02
LEAD_S = 0.5  # from the start of the run to its first request


@dataclass(slots=True)
class Replayed:
    """In the order of the arrivals, in the profile's time; a request that failed has inf."""

    ttft_s: list[float]
    degree: list[int]
    cached_tokens: list[int]
    late_s: float = 0.0  # the latest that a request was sent
    daemon_share: float = 0.0  # of one core that the daemon took


class Timings(msgspec.Struct):
    """What a node says about an answer."""

    degree: int
    ttft_s: float


class Details(msgspec.Struct):
    cached_tokens: int


class Usage(msgspec.Struct):
    prompt_tokens_details: Details


class Completion(msgspec.Struct):
    vertumnus: Timings
    usage: Usage


class Adaptation(msgspec.Struct):
    """On the clock of the node; None while the composition is changed by hand only."""

    window_ends_at: float | None


class View(msgspec.Struct):
    adaptation: Adaptation


def replay(cluster: LiveCluster, arrivals: Sequence[Arrival]) -> Replayed:
    """Send every request and wait for all answers."""
    n = len(arrivals)
    replayed = Replayed([math.inf] * n, [0] * n, [0] * n)
    trio.run(_replay, cluster, arrivals, replayed)
    return replayed


async def _replay(cluster: LiveCluster, arrivals: Sequence[Arrival], replayed: Replayed) -> None:
    connections = Connections(cluster.socket)
    start, cpu_s = await _beginning(connections), cluster.cpu_s()
    async with trio.open_nursery() as nursery:
        for n, arrival in enumerate(arrivals):
            body = prompt(n, arrival)
            due = start + arrival.at_s * cluster.pace
            await trio.sleep_until(due)
            replayed.late_s = max(replayed.late_s, trio.current_time() - due)
            nursery.start_soon(_ask, connections, cluster.pace, n, body, replayed)
    replayed.daemon_share = (cluster.cpu_s() - cpu_s) / (trio.current_time() - start)
    await connections.close()


async def _beginning(connections: Connections) -> float:
    """When the first window begins: in the simulator one does with the trace.

    A moment from now where the composition stays as it is.
    """
    ends = None
    while True:
        connection = await connections.take()
        _, body = await connection.request("GET", "/v1/cluster")
        await connections.give_back(connection)
        adaptation = msgspec.json.decode(body, type=View).adaptation
        if adaptation.window_ends_at is None:
            return trio.current_time() + LEAD_S
        if ends is not None and ends != adaptation.window_ends_at:
            return trio.current_time()
        ends = adaptation.window_ends_at
        await trio.sleep(POLL_S)


async def _ask(
    connections: Connections, pace: float, n: int, body: bytes, replayed: Replayed
) -> None:
    connection = await connections.take()
    status, answer = await connection.request("POST", "/v1/completions", body)
    await connections.give_back(connection)
    if status != 200:
        return
    completion = msgspec.json.decode(answer, type=Completion)
    replayed.ttft_s[n] = completion.vertumnus.ttft_s / pace
    replayed.degree[n] = completion.vertumnus.degree
    replayed.cached_tokens[n] = completion.usage.prompt_tokens_details.cached_tokens


class Connection:
    """One kept HTTP connection; one request at a time."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.since = trio.current_time()  # it is idle
        self._http = h11.Connection(h11.CLIENT)

    async def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and body of the answer."""
        http = self._http
        if http.our_state is h11.DONE:
            http.start_next_cycle()
        headers = [("Host", "live"), ("Content-Length", str(len(body)))]
        head = h11.Request(method=method, target=path, headers=headers)
        sent = [http.send(event) or b"" for event in (head, h11.Data(body), h11.EndOfMessage())]
        await self.stream.send_all(b"".join(sent))
        return await self._answer()

    async def _answer(self) -> tuple[int, bytes]:
        status, parts = 0, []
        while True:
            match event := self._http.next_event():
                case h11.NEED_DATA:
                    self._http.receive_data(bytes(await self.stream.receive_some(READ_BYTES)))
                case h11.Response():
                    status = event.status_code
                case h11.Data():
                    parts.append(bytes(event.data))
                case _:
                    return status, b"".join(parts)

    @property
    def kept(self) -> bool:
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE


class Connections:
    """As many as requests wait at once. The one that was used last is taken first."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._idle: list[Connection] = []

    async def take(self) -> Connection:
        if self._idle and trio.current_time() - self._idle[-1].since > IDLE_S:
            await self.close()  # the others are idle even longer
        if self._idle:
            return self._idle.pop()
        return Connection(await trio.open_unix_socket(self._socket))

    async def give_back(self, connection: Connection) -> None:
        """Its request is answered."""
        if connection.kept:
            connection.since = trio.current_time()
            self._idle.append(connection)
        else:
            await connection.stream.aclose()

    async def close(self) -> None:
        """Those that nobody uses."""
        while self._idle:
            await self._idle.pop().stream.aclose()


def prompt(n: int, arrival: Arrival) -> bytes:
    """The body of the n-th request: a block of the trace has its tokens, the tail is its own."""
    blocks = [_block(block) for block in arrival.blocks]
    tail = arrival.input_tokens - BLOCK_TOKENS * len(blocks)
    blocks += [_tokens(b"tail %d" % n, tail)] if tail else []
    return b'{"max_tokens":1,"temperature":0,"prompt":[' + b",".join(blocks) + b"]}"


@lru_cache(maxsize=65_536)
def _block(block: int) -> bytes:
    return _tokens(b"block %d" % block, BLOCK_TOKENS)


def _tokens(seed: bytes, count: int) -> bytes:
    """``count`` token ids below 256, in JSON."""
    return ",".join(map(str, shake_128(seed).digest(count))).encode()
