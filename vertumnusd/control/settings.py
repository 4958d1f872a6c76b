"""What the controller is told once: the geometry, the weights of J, and every limit."""

from __future__ import annotations

import msgspec

from vertumnusd.control.fleet import parse_composition


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Checked when made; ValueError names what is wrong and what is allowed.

    Prefill ranks are 0 … ``ranks - 1``; decode ranks are ``ranks`` … ``ranks + decode_ranks - 1``.
    """

    cp_degrees: tuple[int, ...]
    ranks: int
    home_ranks: int
    composition: str
    beta: float = 1.0  # weight of the service time in J; above 1 keeps prefixes together
    lambda_: float = 0.0  # price of extra GPU seconds in J
    block_tokens: int
    kv_blocks: int  # of one prefill rank
    decode_ranks: int
    decode_kv_blocks: int  # of one decode rank
    max_queue_tokens: int  # input tokens of all waiting requests
    max_queue_s: float  # predicted wait before a new request's prefill
    unplaced_wait_s: float  # how long a request waits for any worker to serve

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
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
        parse_composition(self.composition, self.cp_degrees, self.ranks)

    @property
    def home_blocks(self) -> int:
        """The longest chain, in blocks, that one home can hold."""
        return self.kv_blocks * self.home_ranks

    def blocks(self, tokens: int) -> int:
        """Blocks that ``tokens`` take, a partial tail included."""
        return -(-tokens // self.block_tokens)


_POSITIVE = (
    "ranks",
    "home_ranks",
    "block_tokens",
    "kv_blocks",
    "decode_ranks",
    "decode_kv_blocks",
    "max_queue_tokens",
    "max_queue_s",
    "unplaced_wait_s",
)
