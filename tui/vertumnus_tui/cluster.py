"""The cluster as a node shows it, with types: what is missing has a default, what is more is left.

So an older or newer node, and a recording of a simulator, can be looked at as well.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Struct(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all that follows."""


class Worker(Struct, frozen=True):
    name: str
    degree: int
    ranks: list[int]
    state: str = ""
    ranks_down: list[int] = []
    epoch: int = 0
    queue_s: float = 0.0
    waiting: int = 0
    running: list[str] = []
    blocked: str = ""
    input_tokens: int = 0
    cached_tokens: int = 0

    @property
    def hit_rate(self) -> float | None:
        return self.cached_tokens / self.input_tokens if self.input_tokens else None


class Request(Struct, frozen=True):
    request: str
    phase: str = ""
    worker: str | None = None
    attempt: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    predicted_s: float | None = None
    accepted_at: float | None = None
    decode_rank: int | None = None
    layers_done: int | None = None
    layers: int | None = None
    ttft_s: float | None = None


class Operation(Struct, frozen=True):
    operation: int
    kind: str = ""
    before: list[str] = []
    after: list[str] = []
    phase: str = ""
    elapsed_s: float = 0.0
    predicted_drain_s: float | None = None
    drain_s: float | None = None
    park_s: float | None = None
    adopt_s: float | None = None


class Home(Struct, frozen=True):
    base: int
    ranks: list[int] = []
    cached_blocks: int = 0
    pinned_blocks: int = 0
    free_blocks: int = 0
    reserved_blocks: int = 0


class Transfer(Struct, frozen=True):
    transfer: int
    prefix: str = ""
    blocks: int = 0
    source_home: int = 0
    destination_home: int = 0
    kind: str = ""
    phase: str = ""
    kv_bytes: int | None = None
    deadline: float | None = None


class DecodePool(Struct, frozen=True):
    rank: int
    up: bool = False
    free_blocks: int = 0
    kv_blocks: int = 0


class Drain(Struct, frozen=True):
    """A worker that an operator takes out of service."""

    worker: str
    drained: bool = False


class Replicas(Struct, frozen=True):
    degree: int
    workers: int


class Prefix(Struct, frozen=True):
    prefix: str
    tokens: int = 0
    access: float = 0.0
    missed_s: float = 0.0
    homes: list[int] = []
    replicas: list[Replicas] = []


class Change(Struct, frozen=True):
    """A split or merge that would be begun."""

    kind: str
    before: list[str]
    after: list[str]


class Adaptation(Struct, frozen=True):
    held_until: float | None = None
    held_by: str = ""
    window_s: float = 0.0
    window_ends_at: float | None = None
    requests: int = 0
    demand_s: float = 0.0
    capacity_s: float = 0.0
    upper_s: float = 0.0
    lower_s: float = 0.0
    hold_windows: int = 0
    min_requests: int = 0
    next: Change | None = None


class Decision(Struct, frozen=True):
    """The end of a window (``Decided``)."""

    window: int = 0
    verdict: str = ""
    signal: str = ""
    reason: str = ""
    held: int = 0
    requests: int = 0
    demand_s: float = 0.0
    capacity_s: float = 0.0
    upper_s: float = 0.0
    lower_s: float = 0.0
    long_request_share: float = 0.0
    composition: str = ""


class Waiting(Struct, frozen=True):
    requests: int = 0
    tokens: int = 0
    oldest_s: float = 0.0
    reasons: dict[str, int] = {}


class Geometry(Struct, frozen=True):
    ranks: int = 0
    cp_degrees: list[int] = []
    home_ranks: int = 1
    block_tokens: int = 1
    kv_blocks: int = 0


class Slo(Struct, frozen=True):
    attainment: float = 1.0
    hit_rate: float = 0.0
    requests: int = 0
    ttft_s: dict[str, float] = {}
    recent_ttft_s: dict[str, float] = {}


class Cluster(Struct, frozen=True):
    term: int = 0
    epoch: int = 0
    composition: str = ""
    model: str = ""
    node: str = ""
    unready: str = ""
    kv_bytes_per_token: int = 0
    geometry: Geometry = Geometry()
    workers: list[Worker] = []
    requests: list[Request] = []
    operations: list[Operation] = []
    homes: list[Home] = []
    transfers: list[Transfer] = []
    decode: list[DecodePool] = []
    hot_prefixes: list[Prefix] = []
    drains: list[Drain] = []
    prefixes: dict[str, int] = {}
    waiting: Waiting = Waiting()
    totals: dict[str, int] = {}
    slo: Slo = Slo()
    adaptation: Adaptation = Adaptation()
    decision: Decision | None = None

    def state_of(self, worker: Worker) -> str:
        """One word; "drained" for one that an operator has taken out of service."""
        idle = any(drain.drained and drain.worker == worker.name for drain in self.drains)
        return "drained" if idle and worker.state == "draining" else worker.state

    def homes_of(self, worker: Worker) -> list[Home]:
        ranks = set(worker.ranks)
        return [home for home in self.homes if home.base in ranks]

    def bytes_of(self, transfer: Transfer) -> int:
        """Of all its blocks; 0 if a block's size is not known."""
        return transfer.blocks * self.geometry.block_tokens * self.kv_bytes_per_token

    def cached_tokens(self, worker: Worker) -> int:
        blocks = sum(home.cached_blocks for home in self.homes_of(worker))
        return blocks * self.geometry.block_tokens


def read(cluster: dict[str, Any]) -> Cluster:
    """Lists of things with numbers in their order: entries may have come in any.

    Raises ``msgspec.ValidationError``: this is no cluster.
    """
    found = msgspec.convert(cluster, Cluster)
    found.workers.sort(key=lambda worker: worker.ranks)
    found.homes.sort(key=lambda home: home.base)
    found.operations.sort(key=lambda operation: operation.operation)
    found.transfers.sort(key=lambda transfer: transfer.transfer)
    found.decode.sort(key=lambda pool: pool.rank)
    return found
