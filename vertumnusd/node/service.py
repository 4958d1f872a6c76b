"""What the doors (HTTP, websocket) need of the node behind them, and nothing more.

The daemon's own implementation is ``requests.Requests``; tests of the doors use a scripted one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from vertumnusd.messages import Answer, ModelInfo, Sampling


@dataclass(frozen=True, slots=True)
class Job:
    """One generation, checked by its door: ids within the vocabulary, lengths within the context.

    ``max_new_tokens`` 0 prefills and keeps the prefix, drawing nothing. ``salt`` separates the
    prefix caches of tenants; it comes from the API key, never from the client's message.
    ``arrived`` is when the door took it in (trio's clock): the answer's times count from there.
    """

    request: str  # unique, made by the server
    arrived: float
    tokens: list[int]
    max_new_tokens: int
    sampling: Sampling
    stop_tokens: tuple[int, ...]
    salt: bytes = b""


class Operator(Protocol):
    """What operators can do with the node. Raises :class:`RequestError` for what is not possible.

    Workers are named as in ``GET /v1/cluster``. What is returned is JSON-ready.
    """

    def plan(self, kind: str, workers: Sequence[str]) -> list[dict[str, Any]]:
        """What :meth:`convert` would begin now, and what it would have to wait for."""
        ...

    async def convert(self, kind: str, workers: Sequence[str]) -> list[dict[str, Any]]:
        """Split or merge the workers; return when that is done, or was rolled back."""
        ...

    async def drain(self, workers: Sequence[str]) -> list[dict[str, Any]]:
        """Take workers (or "all") out of service; return when they run nothing any more."""
        ...

    def undrain(self, workers: Sequence[str]) -> list[str]:
        """Let drained workers (or "all" of them) serve again; their names."""
        ...

    def hold(self, for_s: float, by: str) -> None:
        """Begin nothing automatically for so long; 0 ends it. ``by``: who wants it."""
        ...

    def reclaim(self, prefix: str, homes: Sequence[int], dry_run: bool) -> list[dict[str, Any]]:
        """Delete a cached prefix from these homes (from all, if none is named).

        What goes, by home; nothing where it is needed now.
        """
        ...

    async def audit(self) -> list[dict[str, Any]]:
        """What the prefix trie claims of each prefill rank against what the rank holds."""
        ...

    def why(self, what: str) -> list[dict[str, Any]]:
        """What happened to a request, or led to the last decision or reconfiguration."""
        ...


class Service(Protocol):
    """The node as its doors see it."""

    @property
    def model(self) -> ModelInfo: ...

    @property
    def kv_capacity_tokens(self) -> int:
        """The longest input plus output that a home's KV pool and a decode pool can hold."""
        ...

    def unready_reason(self) -> str:
        """Why new work is not taken (loading, draining, no controller); "" when it is."""
        ...

    def cluster(self) -> dict[str, Any]:
        """The cluster as ``GET /v1/cluster`` shows it: JSON-ready."""
        ...

    def answer(self, job: Job) -> AbstractAsyncContextManager[AsyncIterator[Answer]]:
        """Submit ``job``; iterate its answer. Leaving the block early cancels the request.

        The iterator ends after ``Finished`` or ``Failed``. It never raises for a refused or failed
        request: that is a ``Failed`` event.
        """
        ...
