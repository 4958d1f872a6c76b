"""Devices, as far as one can tell without: the path of CPU ranks, and how handles travel."""

from __future__ import annotations

import msgspec
import pytest
import torch
from test_groups import start, store

from vertumnusd.rank import device

pytestmark = pytest.mark.ranks

__all__ = ["store"]  # a fixture

HANDLE: device.Handle = (3, b"\x00handle\xff", 1 << 40, 512, b"counter", 7, b"event", True)


def test_on_cpu_nothing_is_copied_and_no_default_changes(store: torch.distributed.TCPStore) -> None:
    before = torch.get_default_device()
    cpu = device.open_device(start(store, 0, 1, (1,)))
    weights = {"w": torch.ones(3)}
    assert device.on_device(weights, cpu)["w"] is weights["w"]
    device.finish(cpu)
    assert cpu.type == "cpu"
    assert torch.get_default_device() == before


def test_a_handle_arrives_as_it_was_sent() -> None:
    assert device.decode(device.encode(HANDLE)) == HANDLE


def test_what_is_no_handle_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        device.decode(msgspec.msgpack.encode([1, 2, 3]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_pool_on_a_device_is_taken_and_shown(store: torch.distributed.TCPStore) -> None:
    memory = device.take_memory(1 << 20, torch.device("cuda", 0))
    device.show(store, 0, memory)
    handle = device.decode(device.handle_of(store, 0))
    assert (handle[0], handle[2]) == (0, memory.nbytes)
