"""How well a profile's Ê describes the times it was fitted to, by degree and cached share.

For inputs of 64 tokens and more with 0, 50 and 90 % cached. Targets: a median error of 3 % or less,
and a P90 of 10 % or less; the ratio is the worse of the two errors over its target. ``unseen`` are
errors on lengths that were left out of the fit.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness import result
from profiled import conditions, measurements, profile

from vertumnusd.control.prefill_time import Measurement, relative_error
from vertumnusd.profile.fitting import choose, input_tokens

SHORTEST_TOKENS, HIGHEST_SHARE = 64, 0.95
MEDIAN_TARGET, P90_TARGET = 0.03, 0.10
SHARES = (("cold", 0.0, 0.01), ("half", 0.01, 0.75), ("most", 0.75, HIGHEST_SHARE))

measured = profile(__doc__)
predict_s = measured.prefill_time.predict_s


def share(m: Measurement) -> float:
    return m.cached_tokens / input_tokens(m)


def off(m: Measurement) -> float:
    """By how much the profile is off, relative to what was measured."""
    return predict_s(m.degree, m.uncached_tokens, m.cached_tokens) / m.elapsed_s - 1


def figures(errors: Sequence[float]) -> list[float]:
    """Median, P90 and maximum."""
    error = relative_error(errors)
    return [round(error.median, 4), round(error.p90, 4), round(error.max, 4)]


every = measurements(measured)
points = [m for m in every if input_tokens(m) >= SHORTEST_TOKENS and share(m) < HIGHEST_SHARE]
parts = {
    f"CP{degree} {name}": figures([off(m) for m in part])
    for degree in sorted({m.degree for m in points})
    for name, low, high in SHARES
    if (part := [m for m in points if m.degree == degree and low <= share(m) < high])
}
error = relative_error([off(m) for m in points])
result(
    **conditions(measured),
    points=len(points),
    form=measured.measured["form"],
    error=figures([off(m) for m in points]),
    parts=parts,
    unseen={judged.candidate.name: figures(judged.unseen) for judged in choose(every)[1]},
    targets=[MEDIAN_TARGET, P90_TARGET],
    ratio=max(error.median / MEDIAN_TARGET, error.p90 / P90_TARGET),
)
