"""What Ê is made of, what it is fitted to, and how well (``prefill_time.py``): all that is kept in
profiles, and so checked as it is read."""

from __future__ import annotations

from typing import Annotated

import msgspec

NonNegative = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]


class Coefficients(msgspec.Struct, frozen=True):
    """The coefficients of Ê, none of them negative."""

    d_s: NonNegative  # seconds per prefill
    a_s: NonNegative  # seconds per uncached token, on every rank
    b_s: NonNegative  # seconds per cached token, on every rank
    c_s: NonNegative  # seconds per uncached token, shared by the ranks
    alpha_s: NonNegative  # seconds per query-key pair, shared by the ranks
    gamma_s: NonNegative = 0.0  # and this much more if both are uncached; 0 in the published form

    def times(self, pace: float) -> Coefficients:
        """Those of a machine that takes ``pace`` times as long."""
        return Coefficients(*(pace * value for value in msgspec.structs.astuple(self)))


class Measurement(msgspec.Struct, frozen=True):
    """One prefill that did not queue."""

    degree: int
    uncached_tokens: int
    cached_tokens: int
    elapsed_s: Positive


class RelativeError(msgspec.Struct, frozen=True):
    """``|predicted - measured| / measured`` over the measurements of a fit."""

    median: float
    p90: float
    max: float
