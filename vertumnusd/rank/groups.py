"""The process groups of the grouping lattice, made and warmed before serving.

For every configured degree above 1, a rank joins the one aligned set of that many ranks that
contains it. Groups are built directly over the host's store, so that a restarted lattice root
can make its groups again (under a new generation) while the other ranks keep theirs. The only
collective that ranks of a host need is a barrier: K and V travel through shared memory.
"""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from vertumnusd.messages import RankStart


class CollectiveError(Exception):
    """A collective failed or took too long: a peer is gone, and this group with it."""


class Group:
    """This rank's seat in one aligned set of ranks."""

    def __init__(self, gloo: dist.ProcessGroupGloo, degree: int, base: int) -> None:
        self.degree = degree
        self.base = base
        self.cp_rank = gloo.rank()
        self._gloo = gloo

    def barrier(self) -> None:
        """Wait, asleep, until every rank of the group is here.

        Raises CollectiveError within milliseconds when a direct peer has died, and after the
        collective timeout when one hangs.
        """
        try:
            self._gloo.barrier().wait()
        except RuntimeError as error:
            raise CollectiveError(
                f"barrier of the {self.degree} ranks from {self.base} on: {error}"
            ) from error


class Groups:
    """All groups of one rank, by (degree, base). Raises CollectiveError when one cannot be made."""

    def __init__(self, start: RankStart) -> None:
        self._groups: dict[tuple[int, int], Group] = {}
        timeout = timedelta(seconds=start.collective_timeout_s)
        sets = [(degree, start.rank - start.rank % degree) for degree in sorted(start.cp_degrees)]
        try:
            store = dist.TCPStore(
                start.store_host, start.store_port, timeout=timeout, wait_for_workers=False
            )
            for degree, base in sets:
                # Ranks left over at the end of a host fill no set of this degree.
                if degree > 1 and base + degree <= len(start.kv_fds):
                    gloo = _connect(start, store, degree, base, timeout)
                    self._groups[degree, base] = Group(gloo, degree, base)
        except RuntimeError as error:
            raise CollectiveError(f"groups of rank {start.rank}: {error}") from error
        for group in self._groups.values():
            group.barrier()

    def group(self, degree: int, base: int) -> Group:
        """The group of that geometry. KeyError if this rank is in no such group."""
        return self._groups[degree, base]


def _connect(
    start: RankStart, store: dist.Store, degree: int, base: int, timeout: timedelta
) -> dist.ProcessGroupGloo:
    """Meet the set's other ranks; listens on the store's address and no other."""
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timeout
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=start.store_host)]
    names = dist.PrefixStore(f"{start.generation}/{degree}/{base}", store)
    return dist.ProcessGroupGloo(names, start.rank - base, degree, options)
