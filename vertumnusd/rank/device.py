"""A rank's device, and memory on it that other ranks of the host can reach.

On CPU that is the host's memory, and everything here does nothing. On CUDA each rank has a device
of its own. Tensors are made there unless told otherwise; the KV pool lies there, and is shown to
other processes by CUDA IPC: torch's handle of the memory goes into the store, under the rank's
number, from where the decode ranks of the host take it. A restarted rank puts up a new one.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from vertumnusd.messages import RankStart

# As torch's storages give and take it.
Handle = tuple[int, bytes, int, int, bytes, int, bytes, bool]


def open_device(start: RankStart) -> torch.device:
    """Make the rank's device the one that this thread works on."""
    device = torch.device(start.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.set_default_device(device)
    return device


def on_device(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """The tensors on the device; those that are there already are not copied."""
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def finish(device: torch.device) -> None:
    """Return when all that was begun on the device is done, so that others may read it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def is_out_of_memory(error: Exception) -> bool:
    """Whether torch failed for want of memory. Its allocator for CPU says so in words alone."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def take_memory(size_bytes: int, device: torch.device) -> Tensor:
    """Memory (bytes,) on a CUDA device, of one piece."""
    return torch.empty(size_bytes, dtype=torch.uint8, device=device)


def show(store: dist.Store, rank: int, memory: Tensor) -> None:
    """Let the other processes of this host reach the memory, for as long as it is kept here."""
    store.set(_name(rank), encode(memory.untyped_storage()._share_cuda_()))


def handle_of(store: dist.Store, rank: int) -> bytes:
    """What the rank has shown; waits for it."""
    return bytes(store.get(_name(rank)))


def reach(handle: bytes) -> Tensor:
    """The memory (bytes,) that another process shows."""
    storage = torch.UntypedStorage._new_shared_cuda(*decode(handle))
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def encode(handle: Handle) -> bytes:
    return msgspec.msgpack.encode(handle)


def decode(handle: bytes) -> Handle:
    """Raises msgspec.ValidationError for what is no handle."""
    return msgspec.msgpack.decode(handle, type=Handle)


def _name(rank: int) -> str:
    return f"pool/{rank}"
