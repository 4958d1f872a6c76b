"""What the controller is told once: the geometry, the weights of J, and every limit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

from vertumnusd.control.fleet import Worker, parse_composition
from vertumnusd.control.initial_composition import composition_for


def _check_positive(settings: msgspec.Struct, names: Iterable[str]) -> None:
    for name in sorted(names):
        if not getattr(settings, name) > 0:
            raise ValueError(f"{name} is {getattr(settings, name)}; it must be above 0")


_NOT_POSITIVE = {
    "automatic",
    "judge_by",
    "capacity_shares",
    "hysteresis",
    "steady_share",
    "dwell_s",
}


class ReconfigurationSettings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """When and how the composition follows the load (``demand.py``, ``reconfig.py``)."""

    automatic: bool = True
    judge_by: Literal["times", "demand"] = "times"  # policy "paper" knows demand only
    window_s: float = 20.0
    long_tokens: int = 32_768  # an input of more is long
    capacity_share: float = 0.8  # κ_C / window_s: what a worker can serve and meet its SLO …
    capacity_shares: dict[int, float] = {}  # … at degrees that were measured
    split_above: float = 0.9  # of the composition's capacity
    merge_below: float = 0.5
    # by times: a lower TTFT is lower by this share; by demand: a merge keeps D below a split by it
    hysteresis: float = 0.05
    steady_share: float = 0.1  # D is steady this close to its reference
    long_shift: float = 0.05  # change of the share of long requests that counts
    hold_windows: int = 2  # by demand: in a row that must speak for the same …
    confidence: float = 2.0  # … by so many standard errors, as a lower TTFT must …
    min_requests: int = 12  # … with enough requests for errors to mean anything
    dwell_s: float = 20.0  # after an operation, until the next; by times: until a merge
    max_operations: int = 8  # at once
    patience_s: float = 5.0  # a drain lets paused requests wait this long
    drain_deadline_s: float = 30.0
    switch_deadline_s: float = 10.0  # for parking, and again for adopting

    def __post_init__(self) -> None:
        _check_positive(self, set(self.__struct_fields__) - _NOT_POSITIVE)
        if self.merge_below >= self.split_above:
            raise ValueError(
                f"merge_below {self.merge_below} must be below split_above {self.split_above}"
            )
        for name in ("steady_share", "dwell_s", "hysteresis"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must not be below 0")
        if not all(share > 0 for share in self.capacity_shares.values()):
            raise ValueError(f"capacity_shares {self.capacity_shares} must be above 0")

    def capacity_s(self, degree: int) -> float:
        """κ_C in seconds a window."""
        return self.window_s * self.capacity_shares.get(degree, self.capacity_share)


class ReplicationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Algorithms 1 and 2 (``replication.py``)."""

    enabled: bool = False
    scan_s: float = 10.0
    decay: float = 0.5  # of both statistics, at each scan
    inter_missed_s: float = 2.0  # θ_inter: seconds lost for want of a replica at a degree
    intra_accesses: float = 8.0  # θ_intra: accesses a replica
    reclaim_accesses: float = 0.5  # θ_reclaim: accesses a replica
    reclaim_above: float = 0.9  # reclaim only from homes fuller than this
    max_of_each: int = 8  # replications of either kind, and reclaims, a scan
    max_transfers: int = 16  # under way
    max_nodes: int = 65_536  # with statistics
    transfer_deadline_s: float = 30.0

    def __post_init__(self) -> None:
        _check_positive(self, set(self.__struct_fields__) - {"enabled"})
        if self.decay >= 1:
            raise ValueError(f"decay {self.decay} must be below 1")
        if self.reclaim_accesses >= self.intra_accesses:
            raise ValueError(
                f"reclaim_accesses {self.reclaim_accesses} must be below intra_accesses"
                f" {self.intra_accesses}"
            )


class FetchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Prefixes that are copied for a request (``fetching.py``)."""

    token_s: float = 0.0  # seconds to copy the KV of one token to another home; 0: none are fetched
    latency_s: float = 0.01  # that any copy takes besides
    max_running: int = 16
    deadline_s: float = 5.0  # then what is missing is computed

    def __post_init__(self) -> None:
        _check_positive(self, set(self.__struct_fields__) - {"token_s", "latency_s"})
        if self.token_s < 0 or self.latency_s < 0:
            raise ValueError(f"token_s {self.token_s} and latency_s {self.latency_s} must be ≥ 0")


class SloClass(msgspec.Struct, frozen=True):
    """Inputs of fewer than ``below_tokens`` (and of no shorter class) shall have this TTFT."""

    below_tokens: float
    ttft_s: float


SLO = (SloClass(8192, 1.0), SloClass(32768, 5.0), SloClass(float("inf"), 10.0))


AUTO = "auto"

# Of policy "ours" over the published one:
# promises         a match counts blocks that queued and running requests will produce
# remaining        of what a worker was given, J counts what is left
# shortest-first   the shortest request is served first, and J counts whom it delays
# pause            leads pause long prefills for shorter ones (``step_order.py``)
# pack             leads run short ones together
# fetch            J also prices a longer prefix that another home has, where ``fetch`` says how
Improvement = Literal["promises", "remaining", "shortest-first", "pause", "pack", "fetch"]
IMPROVEMENTS: tuple[Improvement, ...] = get_args(Improvement)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Checked when made; ValueError names what is wrong and what is allowed.

    Prefill ranks are 0 … ``ranks - 1``; decode ranks are ``ranks`` … ``ranks + decode_ranks - 1``.
    """

    cp_degrees: tuple[int, ...]
    ranks: int
    home_ranks: int
    composition: str  # such as "2CP4/4CP2", or AUTO: by ``historic_demands_s`` and κ_C
    historic_demands_s: tuple[float, ...] = ()  # D of past windows of reconfiguration.window_s
    beta: float = 1.0  # weight of the service time in J; above 1 keeps prefixes together
    lambda_: float = 0.0  # price of extra GPU seconds in J
    block_tokens: int
    kv_blocks: int  # of one prefill rank
    decode_ranks: int
    decode_kv_blocks: int  # of one decode rank
    max_queue_tokens: int  # input tokens of all waiting requests
    max_queue_s: float  # predicted wait before a new request's prefill
    unplaced_wait_s: float  # how long a request waits for any worker to serve
    step_s: float = 0.2  # predicted length of a lead's steps, between which it pauses
    policy: Literal["paper", "ours"] = "paper"  # the published one, or with every IMPROVEMENT …
    left_out: tuple[Improvement, ...] = ()  # … but for these
    mark_tokens: int = 512  # promises and statistics of prefixes are kept every so many tokens
    slo: tuple[SloClass, ...] = SLO  # shortest class first
    reconfiguration: ReconfigurationSettings = ReconfigurationSettings(automatic=False)
    replication: ReplicationSettings = ReplicationSettings()
    fetch: FetchSettings = FetchSettings()

    def __post_init__(self) -> None:
        _check_positive(self, _POSITIVE)
        if self.beta < 1 or self.lambda_ < 0:
            raise ValueError(f"beta {self.beta} must be ≥ 1 and lambda {self.lambda_} ≥ 0")
        degrees = sorted(self.cp_degrees)
        if not degrees or degrees[0] < 1 or len(set(degrees)) < len(degrees):
            raise ValueError(f"cp_degrees {self.cp_degrees} must be distinct and at least 1")
        for divisor, degree in zip([self.home_ranks, *degrees], degrees, strict=False):
            if degree % divisor:
                raise ValueError(
                    f"cp_degrees {self.cp_degrees}, home_ranks {self.home_ranks}: {divisor} must"
                    f" divide {degree}, as each degree does the next larger one"
                )
        self.workers()

    def workers(self) -> tuple[Worker, ...]:
        """Those to start with. Raises ValueError if the composition does not fit the ranks."""
        if self.composition != AUTO:
            return parse_composition(self.composition, self.cp_degrees, self.ranks)
        capacity_s = {degree: self.reconfiguration.capacity_s(degree) for degree in self.cp_degrees}
        return composition_for(self.historic_demands_s, capacity_s, self.ranks)

    def does(self, improvement: Improvement) -> bool:
        return self.policy == "ours" and improvement not in self.left_out

    @property
    def mark_blocks(self) -> int:
        return max(1, self.mark_tokens // self.block_tokens)

    @property
    def home_blocks(self) -> int:
        """The longest chain, in blocks, that one home can hold."""
        return self.kv_blocks * self.home_ranks

    @property
    def span_blocks(self) -> int:
        """The longest chain, in blocks, that all homes of the largest worker can hold."""
        return self.kv_blocks * max(self.cp_degrees)

    def least_degree(self, blocks: int) -> int:
        """The least degree of a worker whose ranks can hold a chain of so many blocks."""
        return -(-blocks // self.kv_blocks)

    def blocks(self, tokens: int) -> int:
        """Blocks that ``tokens`` take, a partial tail included."""
        return -(-tokens // self.block_tokens)


_POSITIVE = (
    "ranks",
    "home_ranks",
    "block_tokens",
    "mark_tokens",
    "kv_blocks",
    "decode_ranks",
    "decode_kv_blocks",
    "max_queue_tokens",
    "max_queue_s",
    "unplaced_wait_s",
    "step_s",
)
