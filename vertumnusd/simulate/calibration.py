"""Which values of the thresholds serve a load soonest, found by simulation.

One dial after another is turned, with what was found for those before it: every value is played
on the first half of the trace, by the same seeds. Another value than the default is taken only if
its mean TTFT is lower by ``LEAST_GAIN`` and by more than chance: the difference, seed by seed, lies
outside its 95 % interval. What was found is then judged once on the second half, which it has not
seen; if it is not proven there too, the defaults stay.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from vertumnusd.config import Config
from vertumnusd.simulate.choice import Choice
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.experiment import TUNING_SEED, Case, Part, Runner, Source, rows_of
from vertumnusd.simulate.report import Interval, interval

LEAST_GAIN = 0.01  # of the mean TTFT; less is not worth a line in a configuration
QUICK_VALUES = 2  # of each dial, the nearest ones


@dataclass(frozen=True, slots=True)
class Dial:
    """A key of the configuration, and what is tried besides its default: nearest values first."""

    key: str
    values: tuple[float, ...]
    policies: tuple[str, ...] = ("ours", "paper")

    @property
    def default(self) -> float:
        section, _, name = self.key.partition(".")
        return float(msgspec.to_builtins(Config())[section][name])


PAPER = ("paper",)
DIALS = (
    Dial("adaptation.split_above", (0.8, 1.0, 0.7), PAPER),
    Dial("adaptation.merge_below", (0.4, 0.6, 0.3), PAPER),
    Dial("adaptation.hysteresis", (0.02, 0.1, 0.2)),
    Dial("adaptation.confidence", (1.0, 3.0)),
    Dial("placement.beta", (1.25, 1.5, 2.0)),
    Dial("placement.lambda", (0.05, 0.1, 0.25)),
    Dial("replication.inter_missed_s", (0.5, 8.0)),
    Dial("replication.intra_accesses", (4.0, 16.0, 2.0)),
    Dial("replication.reclaim_accesses", (0.25, 1.0)),
)


def dials_of(policy: str, quick: bool) -> list[Dial]:
    """Those that mean something to a policy."""
    kept = [dial for dial in DIALS if policy in dial.policies]
    return [replace(dial, values=dial.values[:QUICK_VALUES]) for dial in kept] if quick else kept


@dataclass(frozen=True, slots=True)
class Load:
    """What is played: ``first`` is the part of the trace that values are found on."""

    source: Source
    rate: float | None
    conditions: Conditions
    first: Part
    seeds: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One dial, turned: each value with its mean TTFT, and what it gains over the value before."""

    dial: Dial
    means_s: dict[float, float]
    gains: dict[float, Interval]
    taken: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """What came of it. Means and ``gain`` are of the second half; ``chosen`` is what was found."""

    defaults: Choice
    chosen: Choice
    defaults_mean_s: float
    chosen_mean_s: float
    gain: Interval

    @property
    def proven(self) -> bool:
        return is_proven(self.gain)

    @property
    def kept(self) -> Choice:
        """What was found if that is proven, else the defaults."""
        return self.chosen if self.proven else self.defaults


def is_proven(gain: Interval) -> bool:
    return gain.mean > max(LEAST_GAIN, gain.half)


def search(
    runner: Runner,
    load: Load,
    defaults: Choice,
    dials: Sequence[Dial],
    told: Callable[[Turn], None],
) -> Calibration:
    """Turn every dial, and judge what was found. Raises TraceError."""
    trials = _Trials(runner, load, sum(len(dial.values) for dial in dials))
    chosen = defaults
    for number, dial in enumerate(dials, 1):
        what = f"{dial.key}, {number} of {len(dials)}"
        chosen, turn = _turn(trials, what, dial, chosen)
        told(turn)
    held_out = trials.means_s("second half", Part.SECOND, [defaults, chosen])
    before, after = held_out[defaults], held_out[chosen]
    return Calibration(defaults, chosen, _mean(before), _mean(after), _gain(before, after))


def _turn(trials: _Trials, what: str, dial: Dial, chosen: Choice) -> tuple[Choice, Turn]:
    choices = {dial.default: chosen}
    for value in dial.values:
        choices[value] = replace(chosen, changed=(*chosen.changed, (dial.key, value)))
    runs = trials.means_s(what, trials.load.first, list(choices.values()))
    means_s = {value: _mean(runs[choice]) for value, choice in choices.items()}
    gains = {value: _gain(runs[chosen], runs[choices[value]]) for value in dial.values}
    better = [value for value in dial.values if is_proven(gains[value])]
    taken = min(better, key=means_s.__getitem__, default=dial.default)
    return choices[taken], Turn(dial, means_s, gains, taken)


def _gain(before: Sequence[float], after: Sequence[float]) -> Interval:
    """What is saved of the mean TTFT, as a share of it; from runs of the same seeds."""
    return interval([1 - a / b for b, a in zip(before, after, strict=True)])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


class _Trials:
    """Plays choices, each once, and says on stderr how much of the whole is left."""

    def __init__(self, runner: Runner, load: Load, values: int) -> None:
        self.load = load
        self._runner = runner
        self._known: dict[Case, float] = {}  # mean TTFT in seconds
        first, second = (len(rows_of(load.source, part)) for part in (load.first, Part.SECOND))
        self._requests = load.seeds * ((values + 1) * first + 2 * second)  # at most
        self._played = 0
        self._started = time.monotonic()

    def means_s(
        self, what: str, part: Part, choices: Sequence[Choice]
    ) -> dict[Choice, list[float]]:
        """The mean TTFT of each seed."""
        cases = {choice: self._cases(part, choice) for choice in dict.fromkeys(choices)}
        fresh = [case for group in cases.values() for case in group if case not in self._known]
        for case, summary in self._runner.run(what, fresh).items():
            self._known[case] = summary.mean_s
            self._played += summary.requests
        self._say_what_is_left()
        return {choice: [self._known[case] for case in group] for choice, group in cases.items()}

    def _cases(self, part: Part, choice: Choice) -> list[Case]:
        load = self.load
        first_seed = TUNING_SEED if part is load.first else 0
        return [
            Case(load.source, part, load.rate, first_seed + n, choice, load.conditions)
            for n in range(load.seeds)
        ]

    def _say_what_is_left(self) -> None:
        left = self._requests - self._played
        elapsed_s = time.monotonic() - self._started
        left_s = elapsed_s * left / self._played
        text = f"{self._played} of {self._requests} requests in {elapsed_s:.0f} s"
        print(f"{text}, about {left_s:.0f} s left in all", file=sys.stderr, flush=True)
