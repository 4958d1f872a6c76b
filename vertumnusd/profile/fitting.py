"""Which Ê describes the measurements best, judged by lengths that it has not seen.

Four candidates: the published and the causal form of Ê (``control/prefill_time.py``), each with one
set of coefficients for all degrees or a set for every degree. More coefficients always fit better
what they were fitted to; so each candidate is fitted again without one input length, predicts that
length, and so on for all lengths. The simplest candidate wins unless a richer one is clearly
better.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from vertumnusd.control.prefill_time import (
    Form,
    Measurement,
    PrefillTime,
    RelativeError,
    fit,
    relative_error,
)

# A richer candidate's mean error on unseen lengths, against that of the best simpler one:
CLEARLY_BETTER = 0.9
WORTH_HAVING = 0.001


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to describe the measurements."""

    form: Form
    per_degree: bool

    @property
    def name(self) -> str:
        return f"{self.form.value}, {'per degree' if self.per_degree else 'shared'}"

    def fit(self, measurements: Sequence[Measurement]) -> PrefillTime:
        """A degree without measurements falls back on the coefficients of all."""
        shared, _ = fit(measurements, self.form)
        if not self.per_degree:
            return PrefillTime(shared)
        groups = by(measurements, lambda m: m.degree)
        return PrefillTime(shared, {d: fit(own, self.form)[0] for d, own in groups.items()})


# Simplest first.
CANDIDATES = tuple(Candidate(form, per_degree) for per_degree in (False, True) for form in Form)


@dataclass(frozen=True, slots=True)
class Judged:
    """A candidate's fit to all measurements, and its signed relative errors, one for each.

    ``unseen``: of the fit that had not seen the measurement's length.
    """

    candidate: Candidate
    prefill_time: PrefillTime
    measurements: Sequence[Measurement]
    seen: Sequence[float]
    unseen: Sequence[float]

    @property
    def error(self) -> RelativeError:
        return relative_error(self.seen)

    @property
    def unseen_error(self) -> RelativeError:
        return relative_error(self.unseen)

    def part(self, wanted: Callable[[Measurement], bool]) -> Judged | None:
        """The errors of some of the measurements; None if there are none of that kind."""
        kept = [n for n, m in enumerate(self.measurements) if wanted(m)]
        if not kept:
            return None
        chosen = ([values[n] for n in kept] for values in (self.seen, self.unseen))
        return Judged(
            self.candidate, self.prefill_time, [self.measurements[n] for n in kept], *chosen
        )


def judge(candidate: Candidate, measurements: Sequence[Measurement]) -> Judged:
    """Raises ValueError if the measurements have fewer than two lengths."""
    lengths = by(measurements, input_tokens)
    if len(lengths) < 2:
        raise ValueError("measurements of at least two input lengths are needed")
    prefill_time = candidate.fit(measurements)
    without = {
        length: candidate.fit([m for m in measurements if input_tokens(m) != length])
        for length in lengths
    }
    return Judged(
        candidate,
        prefill_time,
        measurements,
        [_error(prefill_time, m) for m in measurements],
        [_error(without[input_tokens(m)], m) for m in measurements],
    )


def choose(measurements: Sequence[Measurement]) -> tuple[Judged, list[Judged]]:
    """The best candidate, and all of them, simplest first."""
    judged = [judge(candidate, measurements) for candidate in CANDIDATES]
    best = judged[0]
    for richer in judged[1:]:
        mean, best_mean = _mean_unseen(richer), _mean_unseen(best)
        if mean < CLEARLY_BETTER * best_mean and mean < best_mean - WORTH_HAVING:
            best = richer
    return best, judged


def by(
    measurements: Sequence[Measurement], key: Callable[[Measurement], int]
) -> dict[int, list[Measurement]]:
    """The measurements in groups, in rising order of the key."""
    groups: dict[int, list[Measurement]] = defaultdict(list)
    for measurement in measurements:
        groups[key(measurement)].append(measurement)
    return dict(sorted(groups.items()))


def input_tokens(m: Measurement) -> int:
    return m.uncached_tokens + m.cached_tokens


def _error(prefill_time: PrefillTime, m: Measurement) -> float:
    predicted_s = prefill_time.predict_s(m.degree, m.uncached_tokens, m.cached_tokens)
    return predicted_s / m.elapsed_s - 1


def _mean_unseen(judged: Judged) -> float:
    return fmean(map(abs, judged.unseen))
