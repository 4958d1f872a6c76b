"""How long a prefill takes: W(R, P), Ê_C(R, P) and the fit of its coefficients.

``Ê_C(R, P) = d + a·R + b·P + (c·R + α·W(R, P)) / C`` with R uncached tokens behind P cached ones,
C ranks, and ``W(R, P) = R·P + R(R+1)/2`` query-key pairs. Part of the cost of a token is
repeated on every rank (a, b), part is shared among them (c, α). This is the *published* form.

The *causal* form adds ``γ·R(R+1)/2 / C``: a pair within the suffix costs more than one with the
cached prefix, as a triangle is cut into chunks with a diagonal each where a rectangle is one call.
Without γ the fit has one price for both, and long prefixes with a short suffix come out too dear.

A *pack* of requests in one step pays d once: it is what a prefill costs whatever its length. All
else of Ê adds up, as every token and every pair of each request is computed all the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

from vertumnusd.control.coefficients import Coefficients, Measurement, RelativeError

__all__ = ["Coefficients", "Form", "Measurement", "PrefillTime", "RelativeError", "fit"]

Floats = npt.NDArray[np.float64]


class Form(Enum):
    """Which coefficients a fit may use; see the module's docstring."""

    PUBLISHED = "published"
    CAUSAL = "causal"


@dataclass(frozen=True)
class PrefillTime:
    """Ê for every degree: one shared set of coefficients, and degrees with a set of their own."""

    shared: Coefficients
    by_degree: dict[int, Coefficients] = field(default_factory=dict)

    def predict_s(self, degree: int, uncached_tokens: int, cached_tokens: int) -> float:
        """Ê_C(R, P) in seconds."""
        k = self.by_degree.get(degree, self.shared)
        shared_s = k.c_s * uncached_tokens + k.alpha_s * work(uncached_tokens, cached_tokens)
        shared_s += k.gamma_s * work(uncached_tokens, 0)
        return k.d_s + k.a_s * uncached_tokens + k.b_s * cached_tokens + shared_s / degree

    def at(self, paces: Mapping[int, float]) -> PrefillTime:
        """Ê of these degrees if each takes its pace times as long."""
        paced = {d: self.by_degree.get(d, self.shared).times(pace) for d, pace in paces.items()}
        return PrefillTime(self.shared, paced)

    def overhead_s(self, degree: int) -> float:
        """d: what a prefill costs whatever its length."""
        return self.by_degree.get(degree, self.shared).d_s


def work(uncached_tokens: int, cached_tokens: int) -> float:
    """W(R, P): query-key pairs that are left after a prefix hit."""
    return uncached_tokens * cached_tokens + uncached_tokens * (uncached_tokens + 1) / 2


def packed_s(each_s: Sequence[float], overhead_s: float) -> float:
    """Time of a pack, by what each of it would take alone; each of these has the overhead in it."""
    return sum(each_s) - (len(each_s) - 1) * overhead_s


def fit(
    measurements: Sequence[Measurement], form: Form = Form.PUBLISHED
) -> tuple[Coefficients, RelativeError]:
    """Fit Ê by non-negative least squares, each measurement weighted by 1/t.

    Without the weights the longest prefills alone would decide, and short ones be far off. From
    one degree only, a and c cannot be told apart: the prediction is right, their shares arbitrary.
    """
    if not measurements:
        raise ValueError("a fit needs at least one measurement")
    elapsed = np.array([m.elapsed_s for m in measurements])
    if (elapsed <= 0).any():
        raise ValueError("measured prefill times must be above 0")
    rows = np.array([_row(m, form) for m in measurements]) / elapsed[:, None]
    solution = non_negative_least_squares(rows, np.ones(len(measurements)))
    return Coefficients(*solution.tolist()), relative_error(rows @ solution - 1)


def relative_error(errors: Sequence[float] | Floats) -> RelativeError:
    """Median, P90 and maximum of errors that are relative already, whatever their sign."""
    sizes = np.abs(errors)
    return RelativeError(
        float(np.median(sizes)), float(np.quantile(sizes, 0.9)), float(sizes.max())
    )


def _row(m: Measurement, form: Form) -> tuple[float, ...]:
    """What d, a, b, c and α, and γ in the causal form, are multiplied with in Ê."""
    shared_work = work(m.uncached_tokens, m.cached_tokens) / m.degree
    row = (1.0, m.uncached_tokens, m.cached_tokens, m.uncached_tokens / m.degree, shared_work)
    return row if form is Form.PUBLISHED else (*row, work(m.uncached_tokens, 0) / m.degree)


def non_negative_least_squares(rows: Floats, target: Floats) -> Floats:
    """The x ≥ 0 with the least ``|rows·x - target|``; for a handful of columns.

    At the optimum some set of columns is active and x is the plain least-squares solution
    over them, so every set is tried: six columns have 64, exact and without convergence to
    worry about. Columns are scaled to length 1 (W is 10⁹ times the constant), and QR first shrinks
    the problem to a square one.
    """
    scale = np.linalg.norm(rows, axis=0)
    scale[scale == 0] = 1.0
    q, r = np.linalg.qr(rows / scale)
    projected = q.T @ target
    best: Floats = np.zeros(rows.shape[1])
    best_residual = float(projected @ projected)
    for active in _subsets(rows.shape[1]):
        x = np.zeros(rows.shape[1])
        x[active] = np.linalg.lstsq(r[:, active], projected, rcond=None)[0]
        residual = float(np.sum((r @ x - projected) ** 2))
        if (x >= 0).all() and residual < best_residual:
            best, best_residual = x, residual
    solution: Floats = best / scale
    return solution


def _subsets(columns: int) -> list[list[int]]:
    """Every non-empty set of columns, smaller ones first: among equals the simplest wins."""
    sizes = range(1, columns + 1)
    return [list(s) for size in sizes for s in itertools.combinations(range(columns), size)]
