"""The process groups of the grouping lattice, made and warmed before serving.

For every configured degree above 1, a rank joins the one aligned set of that many ranks that
contains it. Groups are built directly over the host's store, so that a restarted lattice root
can make its groups again (under a new generation) while the other ranks keep theirs. Gloo connects
ranks on CPU, NCCL those on CUDA devices; the calls are the same.

A gloo call returns when it is done, and fails within milliseconds when a direct peer has died. An
NCCL call returns at once and orders the device's stream behind it; when a peer has died its own
watchdog ends this process after the timeout, which is also the only abort that can be relied on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from vertumnusd.messages import RankStart

CPU = torch.device("cpu")


class CollectiveError(Exception):
    """A collective failed or took too long: a peer is gone, and this group with it."""


class Group:
    """This rank's seat in one aligned set of ranks. All its calls raise CollectiveError."""

    def __init__(
        self,
        backend: dist.Backend,
        degree: int,
        base: int,
        pids: Sequence[int],
        device: torch.device,
    ) -> None:
        self.degree = degree
        self.base = base
        self.pids = pids  # of its ranks' processes, in order
        self.cp_rank = backend.rank()
        self._backend = backend
        self._device = device

    def barrier(self) -> None:
        """Wait, asleep, until every rank of the group is here."""
        options = dist.BarrierOptions()
        if self._device.type == "cuda":
            options.device_ids = [self._device.index]  # or NCCL would guess it
        with self._failing("barrier"):
            self._backend.barrier(options).wait()

    def all_gather(self, all_CN: Tensor, own_N: Tensor) -> None:
        """Fill ``all_CN``, C ranks, with what each shows as ``own_N``; both contiguous."""
        with self._failing("all-gather"):
            self._backend._allgather_base(all_CN.flatten(0, 1), own_N).wait()

    def broadcast(self, tensor: Tensor, root: int) -> Arrival:
        """Begin to give ``tensor``, contiguous, of cp_rank ``root`` to all others."""
        with self._failing("broadcast"):
            return Arrival(self._backend.broadcast(tensor, root), self._failing)

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            ranks = f"the {self.degree} ranks from {self.base} on"
            raise CollectiveError(f"{what} of {ranks}: {error}") from error


@dataclass(frozen=True, slots=True)
class Arrival:
    """A broadcast under way."""

    _work: dist.Work
    _failing: Callable[[str], AbstractContextManager[None]]

    def wait(self) -> None:
        """Return when the tensor is here, or (NCCL) order this device's stream behind that."""
        with self._failing("broadcast"):
            self._work.wait()


def join_store(start: RankStart) -> dist.TCPStore:
    """The store of this host's ranks. Raises RuntimeError if it is not there."""
    return dist.TCPStore(
        start.store_host,
        start.store_port,
        timeout=timedelta(seconds=start.collective_timeout_s),
        wait_for_workers=False,
    )


class Groups:
    """All groups of one rank, by (degree, base). Raises CollectiveError when one cannot be made."""

    def __init__(self, start: RankStart, device: torch.device = CPU) -> None:
        self._groups: dict[tuple[int, int], Group] = {}
        timeout = timedelta(seconds=start.collective_timeout_s)
        sets = [(degree, start.rank - start.rank % degree) for degree in sorted(start.cp_degrees)]
        try:
            store = join_store(start)
            pid = f"{start.generation}/{{}}/pid"
            store.set(pid.format(start.rank), str(os.getpid()))
            for degree, base in sets:
                # Ranks left over at the end of a host fill no set of this degree.
                if degree > 1 and base + degree <= len(start.kv_fds):
                    names = dist.PrefixStore(f"{start.generation}/{degree}/{base}", store)
                    own = (names, start.rank - base, degree, timeout)
                    backend = (
                        _nccl(*own, device)
                        if device.type == "cuda"
                        else _gloo(*own, start.store_host)
                    )
                    pids = [int(store.get(pid.format(base + seat))) for seat in range(degree)]
                    self._groups[degree, base] = Group(backend, degree, base, pids, device)
        except RuntimeError as error:
            raise CollectiveError(f"groups of rank {start.rank}: {error}") from error
        for group in self._groups.values():
            group.barrier()

    def group(self, degree: int, base: int) -> Group:
        """The group of that geometry. KeyError if this rank is in no such group."""
        return self._groups[degree, base]


def _gloo(
    names: dist.Store, cp_rank: int, degree: int, timeout: timedelta, host: str
) -> dist.Backend:
    """Meet the set's other ranks; listens on the address ``host`` and no other."""
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timeout
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    return dist.ProcessGroupGloo(names, cp_rank, degree, options)


def _nccl(
    names: dist.Store, cp_rank: int, degree: int, timeout: timedelta, device: torch.device
) -> dist.Backend:
    """Meet the set's other ranks; NCCL_SOCKET_IFNAME tells it which network to use."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    backend = dist.ProcessGroupNCCL(names, cp_rank, degree, options)
    backend.eager_connect_single_device(device)  # else at the first call, in somebody's prefill
    return backend
