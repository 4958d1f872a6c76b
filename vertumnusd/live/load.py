"""Plays a trace to a live cluster: each request at its time, over a connection of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import shake_128

import h11
import msgspec
import trio

from vertumnusd.live.cluster import LiveCluster
from vertumnusd.simulate.traces import BLOCK_TOKENS, Arrival

READ_BYTES = 65_536
LEAD_S = 0.5  # from the start of the run to its first request


@dataclass(slots=True)
class Replayed:
    """In the order of the arrivals, in the profile's time; a request that failed has inf."""

    ttft_s: list[float]
    degree: list[int]
    cached_tokens: list[int]
    late_s: float = 0.0  # the latest that a request was sent


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


def replay(cluster: LiveCluster, arrivals: Sequence[Arrival]) -> Replayed:
    """Send every request and wait for all answers."""
    n = len(arrivals)
    replayed = Replayed([math.inf] * n, [0] * n, [0] * n)
    trio.run(_replay, cluster, arrivals, replayed)
    return replayed


async def _replay(cluster: LiveCluster, arrivals: Sequence[Arrival], replayed: Replayed) -> None:
    start = trio.current_time() + LEAD_S
    async with trio.open_nursery() as nursery:
        for n, arrival in enumerate(arrivals):
            body = prompt(n, arrival)
            due = start + arrival.at_s * cluster.pace
            await trio.sleep_until(due)
            replayed.late_s = max(replayed.late_s, trio.current_time() - due)
            nursery.start_soon(_ask, cluster, n, body, replayed)


async def _ask(cluster: LiveCluster, n: int, body: bytes, replayed: Replayed) -> None:
    status, answer = await _post(cluster, body)
    if status != 200:
        return
    completion = msgspec.json.decode(answer, type=Completion)
    replayed.ttft_s[n] = completion.vertumnus.ttft_s / cluster.pace
    replayed.degree[n] = completion.vertumnus.degree
    replayed.cached_tokens[n] = completion.usage.prompt_tokens_details.cached_tokens


async def _post(cluster: LiveCluster, body: bytes) -> tuple[int, bytes]:
    connection = h11.Connection(h11.CLIENT)
    head = h11.Request(
        method="POST",
        target="/v1/completions",
        headers=[("Host", "live"), ("Content-Length", str(len(body))), ("Connection", "close")],
    )
    async with await trio.open_unix_socket(cluster.socket) as stream:
        sent = [connection.send(event) or b"" for event in (head, h11.Data(body))]
        await stream.send_all(b"".join([*sent, connection.send(h11.EndOfMessage()) or b""]))
        status, parts = 0, []
        while True:
            event = connection.next_event()
            match event:
                case h11.NEED_DATA:
                    connection.receive_data(bytes(await stream.receive_some(READ_BYTES)))
                case h11.Response():
                    status = event.status_code
                case h11.Data():
                    parts.append(bytes(event.data))
                case _:
                    return status, b"".join(parts)


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
