"""Frames between a daemon and its processes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from vertumnusd.frames import MAX_FRAME_BYTES, FrameError, FrameReader, write_frame

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_frames_arrive_whole_and_in_order(pair: Pair) -> None:
    frames = [b"", b"a", bytes(range(256)) * 4000]
    writer = threading.Thread(target=lambda: [write_frame(pair[0], frame) for frame in frames])
    writer.start()
    reader = FrameReader(pair[1])
    assert [reader.read() for _ in frames] == frames
    writer.join()


def test_a_frame_cut_anywhere_is_put_together(pair: Pair) -> None:
    reader = FrameReader(pair[1])
    whole = (5).to_bytes(4, "little") + b"hello"
    writer = threading.Thread(target=lambda: [pair[0].send(whole[i : i + 1]) for i in range(9)])
    writer.start()
    assert reader.read() == b"hello"
    writer.join()


@pytest.mark.parametrize("sent", [b"", b"\x05\x00", b"\x05\x00\x00\x00hel"])
def test_the_end_is_none_also_inside_a_frame(pair: Pair, sent: bytes) -> None:
    pair[0].sendall(sent)
    pair[0].close()
    assert FrameReader(pair[1]).read() is None


def test_a_frame_beyond_the_limit_is_an_error_on_both_sides(pair: Pair) -> None:
    pair[0].sendall((MAX_FRAME_BYTES + 1).to_bytes(4, "little"))
    with pytest.raises(FrameError, match=str(MAX_FRAME_BYTES)):
        FrameReader(pair[1]).read()
    with pytest.raises(FrameError):
        write_frame(pair[0], bytes(MAX_FRAME_BYTES + 1))
