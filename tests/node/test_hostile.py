"""Clients that mean harm, or are broken: each ends its own connection and nothing else."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest
import trio
from scripted import House, WebsocketClient
from wsproto.events import TextMessage

GET = b"GET /v1/responses HTTP/1.1\r\nHost: test\r\n"
UPGRADE = (
    GET + b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
NOISE = random.Random(3).randbytes(4096)


@pytest.fixture(autouse=True)
async def still_alive(house: House) -> AsyncIterator[None]:
    """After every test here: the server serves, and nothing is left behind."""
    yield
    await house.assert_alive()
    await trio.testing.wait_all_tasks_blocked()
    assert not house.service.running
    assert not house.doors._gate._in_flight


def frame(payload: bytes, opcode: int = 1, *, end: bool = True, masked: bool = True) -> bytes:
    head = bytes([opcode | 0x80 * end])
    mask = 0x80 * masked
    if len(payload) < 126:
        head += bytes([len(payload) | mask])
    elif len(payload) < 65536:
        head += struct.pack("!BH", 126 | mask, len(payload))
    else:
        head += struct.pack("!BQ", 127 | mask, len(payload))
    return head + (b"\0\0\0\0" + payload if masked else payload)


async def answer_to(house: House, *sent: bytes) -> bytes:
    """Send raw bytes over a connection, half close, and read all that comes back."""
    client = house.connect()
    for piece in sent:
        await client.stream.send_all(piece)
    await client.stream.send_eof()
    return b"".join([data async for data in client.stream])


@pytest.mark.parametrize(
    "sent",
    [
        NOISE,
        b"\r\n\r\n\r\n\x00",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS hello
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /live HTTP/1.1\r\n\r\n",  # no Host
        b"GET /live HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"GET /live HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /live HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n",
        b"GET /live HTTP/1.1\r\nHost: x\r\nX-Evil: a\x00b\r\n\r\n",
    ],
)
async def test_nonsense_instead_of_a_request_is_an_error(house: House, sent: bytes) -> None:
    answer = await answer_to(house, sent)
    assert answer.split(b" ")[1] in (b"400", b"501", b"505"), answer
    assert b'"type":"invalid_request_error"' in answer or b"server_error" in answer


@pytest.mark.parametrize("sent", [b"", b"G", GET, b"POST /tokenize HTTP/1.1\r\n", UPGRADE[:-1]])
async def test_a_request_that_is_broken_off_ends_the_connection(house: House, sent: bytes) -> None:
    answer = await answer_to(house, sent)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")


async def test_a_body_that_is_broken_off_ends_the_connection(house: House) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
    assert (await answer_to(house, head)).startswith(b"HTTP/1.1 400 ")


async def test_noise_behind_a_request_spoils_nothing_before_it(house: House) -> None:
    answer = await answer_to(house, b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n" + NOISE)
    first, second = answer.split(b"HTTP/1.1 ")[1:]
    assert first.startswith(b"200")
    assert second.startswith(b"400")


@pytest.mark.parametrize(
    "head",
    [
        b"X: " + b"x" * 20_000,
        b"\r\n".join(b"X-%d: x" % number for number in range(3000)),
    ],
)
@pytest.mark.parametrize("piece", [10, 100_000])
async def test_a_huge_header_is_431(house: House, head: bytes, piece: int) -> None:
    sent = GET + head + b"\r\n\r\n"
    pieces = [sent[at : at + piece] for at in range(0, len(sent), piece)]
    assert (await answer_to(house, *pieces)).startswith(b"HTTP/1.1 431 ")


async def test_a_header_that_never_ends_is_cut_off(
    house: House, autojump_clock: trio.testing.MockClock
) -> None:
    client = house.connect()
    await client.stream.send_all(b"GET /live HTTP/1.1\r\n")
    sent = 0
    with suppress(trio.BrokenResourceError):
        for _ in range(1000):
            sent += 1
            await client.stream.send_all(b"X: y\r\n")
            await trio.sleep(0.9)
    assert sent < 10


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ((b"Version: 13", b"Version: 8"), b"426"),
        ((b"AAAAAAAAAAAAAAAAAAAAAA==", b"short"), b"400"),
        ((b"AAAAAAAAAAAAAAAAAAAAAA==", b"!" * 24), b"400"),
        ((b"Sec-WebSocket-Key", b"Sec-Other"), b"400"),
        ((b"Upgrade: websocket", b"Upgrade: h2c"), b"405"),
        ((b"GET /v1/responses", b"GET /v1/models"), b"200"),
        ((b"HTTP/1.1", b"HTTP/1.0"), b"400"),
        ((b"Upgrade: websocket", b"Upgrade: websocket\r\nContent-Length: 3"), b"400"),
    ],
)
async def test_a_wrong_handshake_is_refused(
    house: House, change: tuple[bytes, bytes], status: bytes
) -> None:
    answer = await answer_to(house, UPGRADE.replace(*change))
    assert answer.split(b" ")[1] == status


async def test_frames_behind_the_handshake_are_not_lost(house: House) -> None:
    message = frame(b'{"type": "response.create", "input": "x"}')
    client = house.connect()
    await client.stream.send_all(UPGRADE + message[:7])
    await client.stream.send_all(message[7:])
    got = b""
    while b"response.completed" not in got:
        got += await client.stream.receive_some()
    await client.stream.aclose()


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (NOISE, 1002),
        (b"\x00", None),
        (frame(b"x", masked=False), 1002),
        (frame(b"x", opcode=3), 1002),
        (frame(b"x", opcode=0), 1002),
        (frame(b"x" * 126, opcode=9), 1002),
        (frame(b"x", opcode=9, end=False), 1002),
        (frame(b"\xff\xfe"), 1007),
        (frame(b"\xed\xa0\x80"), 1007),
        (b"\xc1" + frame(b"x")[1:], 1002),  # a reserved bit
        (frame(b"x", end=False) + frame(b"y"), 1002),
        (frame(b"\x03", opcode=8), 1002),
        (frame(struct.pack("!H", 1005), opcode=8), 1002),
        (frame(b"", opcode=8), 1000),
        (struct.pack("!BBQ", 0x81, 0xFF, 2**63), 1002),
    ],
)
async def test_frames_that_break_the_protocol_close_with_the_right_code(
    house: House, sent: bytes, code: int | None
) -> None:
    answer = await answer_to(house, UPGRADE, sent)
    _, _, frames = answer.partition(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 101 ")
    if code is None:
        assert frames == b""
    elif code == 1000:
        assert frames[:1] == b"\x88"
    else:
        assert frames[:1] == b"\x88"
        assert struct.unpack("!H", frames[2:4])[0] == code


async def test_a_message_over_the_limit_closes_with_1009(house: House) -> None:
    house.set_up(message_bytes=1000)
    client = await house.websocket()
    await client.send("x" * 1000)
    assert (await client.receive())["type"] == "error"
    await client.send("x" * 999 + "é")
    assert await client.closed() == 1009


async def test_a_huge_frame_is_refused_before_it_is_there(house: House) -> None:
    client = await house.websocket()
    await client.stream.send_all(struct.pack("!BBQ", 0x81, 0xFF, 2**40) + b"\0\0\0\0")
    for _ in range(17):
        await client.stream.send_all(b"x" * 2**20)
    assert await client.closed() == 1009


def fragments(text: bytes, count: int) -> Iterator[bytes]:
    size = len(text) // count + 1
    parts = [text[at * size : (at + 1) * size] for at in range(count)]
    for at, part in enumerate(parts):
        yield frame(part, opcode=0 if at else 1, end=at == count - 1)


async def test_a_message_may_come_in_64_fragments_and_no_more(house: House) -> None:
    message = json.dumps({"type": "response.create", "input": "x" * 100}).encode()
    client = await house.websocket()
    await client.stream.send_all(b"".join(fragments(message, 64)))
    assert (await client.response())[-1]["type"] == "response.completed"
    await client.stream.send_all(b"".join(fragments(message, 65)))
    assert await client.closed() == 1008


async def test_empty_fragments_count_too(house: House) -> None:
    client = await house.websocket()
    await client.stream.send_all(frame(b"", end=False) + frame(b"", opcode=0, end=False) * 100)
    assert await client.closed() == 1008


async def test_a_close_in_mid_stream_cancels(house: House) -> None:
    house.service.hold_after = 3
    client = await house.websocket()
    await client.create()
    while "delta" not in await client.receive():
        pass
    await client.stream.send_all(frame(struct.pack("!H", 1001), opcode=8))
    assert await client.closed() == 1001
    await house.service.until(lambda: not house.service.running)
    assert len(house.service.cancelled) == 1


async def test_a_truncated_frame_cancels(house: House) -> None:
    house.service.hold_after = 1
    client = await house.websocket()
    await client.create()
    await house.service.until(lambda: bool(house.service.running))
    await client.stream.send_all(frame(b'{"type": "resp')[:9])
    await client.stream.send_eof()
    await house.service.until(lambda: not house.service.running)


async def test_a_websocket_client_that_does_not_read_is_closed(
    house: House, autojump_clock: trio.testing.MockClock
) -> None:
    near, far = trio.testing.lockstep_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(house.doors.serve_stream, far)
        client = WebsocketClient(near)
        assert await client.open() == 101
        await client.create(stream_id="a")
        await client.create(stream_id="b")
        await client.receive()
    assert not house.service.running
    assert 30 <= trio.current_time() <= 60


async def test_a_slow_reader_holds_back_nobody_else(
    house: House, autojump_clock: trio.testing.MockClock
) -> None:
    near, far = trio.testing.lockstep_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(house.doors.serve_stream, far)
        slow = WebsocketClient(near)
        assert await slow.open() == 101
        await slow.create()
        assert await slow.receive()
        quick = await house.websocket()
        await quick.create()
        assert (await quick.response())[-1]["type"] == "response.completed"
        await slow.stream.aclose()


@pytest.mark.parametrize("streaming", [False, True])
async def test_leaving_at_any_moment_of_a_request_leaves_nothing_behind(
    house: House, streaming: bool
) -> None:
    body = json.dumps({"prompt": "x", "stream": streaming}).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
    whole = request % (len(body), body)
    for sent in range(0, len(whole) + 1, 3):
        client = house.connect()
        await client.stream.send_all(whole[:sent])
        await client.stream.aclose()
    for events in range(8):
        house.service.hold_after = events
        client = house.connect()
        await client.stream.send_all(whole)
        await house.service.until(lambda: bool(house.service.running))
        await trio.testing.wait_all_tasks_blocked()
        await client.stream.aclose()
        await house.service.until(lambda: not house.service.running)


async def test_leaving_at_any_moment_of_a_websocket_leaves_nothing_behind(house: House) -> None:
    whole = UPGRADE + frame(b'{"type": "response.create", "input": "x"}')
    for sent in range(0, len(whole) + 1, 3):
        client = house.connect()
        await client.stream.send_all(whole[:sent])
        await client.stream.aclose()
    for events in range(8):
        house.service.hold_after = events
        websocket = await house.websocket()
        await websocket.create()
        await house.service.until(lambda: bool(house.service.running))
        await trio.testing.wait_all_tasks_blocked()
        await websocket.stream.aclose()
        await house.service.until(lambda: not house.service.running)


async def test_random_messages_never_end_the_connection(house: House) -> None:
    """Parts of good messages, put together at random."""
    draw = random.Random(11)
    words = [
        *('{"type":', '"response.create"', '"input":', '"x"', ",", "}", "{", "[", "]", "null"),
        *('"stream_id":', '"lane"', "1e9", "-1", "true", '"\\u0000"', '"temperature":', '"tools":'),
        *('"previous_response_id":', '"max_output_tokens":', '"vertumnus:cancel"', '"metadata":'),
    ]
    client = await house.websocket()
    for _ in range(300):
        await client.send("".join(draw.choices(words, k=draw.randint(1, 12))))
        await client.receive()
    while house.service.running:
        await client.receive()
    assert isinstance(await _next_text(client), TextMessage)


async def _next_text(client: WebsocketClient) -> object:
    await client.send("{")
    return await client.next()
