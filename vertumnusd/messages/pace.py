"""How long a paced rank takes for what it only seems to compute."""

from __future__ import annotations

import msgspec


class DegreePace(msgspec.Struct, frozen=True):
    """The coefficients of Ê at one degree, in seconds; ``control/prefill_time.py`` has the form."""

    d_s: float
    a_s: float
    b_s: float
    c_s: float
    alpha_s: float
    gamma_s: float


class Pace(msgspec.Struct, frozen=True):
    """Prefill times by degree, and the time of one decode iteration."""

    degrees: dict[int, DegreePace]
    token_s: float

    def prefill_s(self, degree: int, uncached_tokens: int, cached_tokens: int) -> float:
        """Ê_C(R, P), as the scheduler predicts it."""
        k, r, p = self.degrees[degree], uncached_tokens, cached_tokens
        triangle = r * (r + 1) / 2
        shared_s = k.c_s * r + k.alpha_s * (r * p + triangle) + k.gamma_s * triangle
        return k.d_s + k.a_s * r + k.b_s * p + shared_s / degree
