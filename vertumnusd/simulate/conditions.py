"""What every policy of a comparison shares: devices, memory, links, and times around a prefill."""

from __future__ import annotations

from dataclasses import dataclass

from vertumnusd.simulate.traces import BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Conditions:
    """Defaults are those of Qwen3-30B-A3B on a 40-GPU prefill pool."""

    profile: str = "q3"  # see profiles.py
    ranks: int = 40
    cp_degrees: tuple[int, ...] = (2, 4)  # of the published policy
    lattice: tuple[int, ...] = ()  # of everybody else; none: the same
    kv_tokens: int = 600_000  # of one GPU
    kv_bytes_per_token: int = 98_304
    link_bytes_s: float = 25e9
    noise_sigma: float = 0.05
    outside_s: float = 0.030  # from the end of the prefill to the first token
    layers: int = 48
    step_s: float = 0.2  # predicted length of a step; pauses are between steps
    switch_s: float = 0.2  # from the last rank parked to the last one that adopted
    # κ_C over the window, by degree (see capacity.py); none: what the controller assumes
    capacity_shares: tuple[tuple[int, float], ...] = ()
    # how much longer prefills take than the profile says, by degree; nobody is told
    paces: tuple[tuple[int, float], ...] = ()

    @property
    def degrees(self) -> tuple[int, ...]:
        """Every degree that a policy may use, if it is not the published one."""
        return self.lattice or self.cp_degrees

    @property
    def kv_blocks(self) -> int:
        return self.kv_tokens // BLOCK_TOKENS

    @property
    def block_bytes(self) -> int:
        return BLOCK_TOKENS * self.kv_bytes_per_token

    def pace(self, degree: int) -> float:
        return dict(self.paces).get(degree, 1.0)

    def usable_blocks(self, input_tokens: int) -> int:
        """Complete blocks that may come from cache: one token at least is always computed."""
        return (input_tokens - 1) // BLOCK_TOKENS
