"""The host helper as a process: loads, hosts the store, ends with its daemon."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch.distributed as dist

from vertumnusd.frames import FrameReader, write_frame
from vertumnusd.messages import FromHelper, Loaded, LoadModel, LoadProgress, RankFault
from vertumnusd.rank.weights import map_weights

pytestmark = pytest.mark.ranks

PATIENCE_S = 60.0


class Helper:
    """The process, our end of its socket, and the weights file."""

    def __init__(self) -> None:
        self.weights_fd = os.memfd_create("weights")
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(PATIENCE_S)
        with theirs:
            command = [sys.executable, "-m", "vertumnusd.rank.host_helper"]
            self.process = subprocess.Popen(
                [*command, "--fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno(), self.weights_fd],
            )
        self._reader = FrameReader(self.socket)

    def send(self, path: str, dtype: str = "float32") -> None:
        order = LoadModel(path, "tiny", dtype, self.weights_fd, "127.0.0.1")
        write_frame(self.socket, msgspec.msgpack.encode(order))

    def receive(self) -> FromHelper:
        frame = self._reader.read()
        assert frame is not None
        return msgspec.msgpack.decode(frame, type=FromHelper)

    def outcome(self) -> FromHelper:
        """The first message that is not progress."""
        while isinstance(message := self.receive(), LoadProgress):
            pass
        return message


@pytest.fixture
def helper() -> Iterator[Helper]:
    helper = Helper()
    yield helper
    helper.process.kill()
    helper.process.wait()
    helper.socket.close()
    os.close(helper.weights_fd)


def test_weights_and_store_are_there_when_it_says_so(helper: Helper, checkpoint: Path) -> None:
    helper.send(str(checkpoint))
    loaded = helper.outcome()
    assert isinstance(loaded, Loaded)
    assert (loaded.model.name, loaded.model.layers) == ("tiny", 4)
    assert os.fstat(helper.weights_fd).st_size == loaded.weights_bytes
    weights = map_weights(helper.weights_fd, loaded.tensors, "float32")
    assert weights["layers.3.qkv"].shape == (128, 64)
    assert all(tensor.isfinite().all() and tensor.any() for tensor in weights.values())
    store = dist.TCPStore("127.0.0.1", loaded.store_port, wait_for_workers=False)
    store.set("key", "value")
    assert store.get("key") == b"value"


def test_the_store_listens_on_the_given_address_only(helper: Helper, checkpoint: Path) -> None:
    helper.send(str(checkpoint))
    loaded = helper.outcome()
    assert isinstance(loaded, Loaded)
    # Another address of the same loopback network: reachable if all addresses were taken.
    with pytest.raises(ConnectionRefusedError), socket.socket() as other:
        other.connect(("127.0.0.2", loaded.store_port))


def test_progress_rises_to_the_total(helper: Helper) -> None:
    helper.send("SmolLM2-135M-Instruct")
    progress = []
    while isinstance(message := helper.receive(), LoadProgress):
        progress.append(message)
    assert isinstance(message, Loaded)
    sizes = [each.loaded_bytes for each in progress]
    assert sizes == sorted(sizes)
    assert len(sizes) > 2
    assert {each.total_bytes for each in progress} == {message.weights_bytes}


@pytest.mark.parametrize(
    ("model", "dtype", "named"),
    [("no-such-model", "float32", "'no-such-model'"), (None, "int4", "'int4'")],
)
def test_a_bad_order_is_answered_with_the_reason(
    helper: Helper, checkpoint: Path, model: str | None, dtype: str, named: str
) -> None:
    helper.send(model or str(checkpoint), dtype)
    fault = helper.outcome()
    assert isinstance(fault, RankFault)
    assert named in fault.reason
    assert helper.process.wait(PATIENCE_S) == 1


def test_a_message_that_makes_no_sense_is_a_fault(helper: Helper) -> None:
    write_frame(helper.socket, b"\xc1")
    assert isinstance(helper.outcome(), RankFault)
    assert helper.process.wait(PATIENCE_S) == 1


def test_it_outlives_signals_and_ends_with_its_daemon(helper: Helper, checkpoint: Path) -> None:
    helper.send(str(checkpoint))
    assert isinstance(helper.outcome(), Loaded)
    helper.process.send_signal(signal.SIGTERM)
    helper.process.send_signal(signal.SIGINT)
    helper.socket.shutdown(socket.SHUT_RDWR)
    assert helper.process.wait(PATIENCE_S) == 0
