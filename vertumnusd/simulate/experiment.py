"""Runs of a comparison, in processes of their own, and the tuning that goes before them.

A ``Case`` names one run completely: source, half of it, load, seed, policy and parameters. It is
all that a process is given, and the same case always gives the same figures. Parameters are tuned
on the first half of a source and scored on the second: all of them on its beginning, and the best
of them on more of it.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path

from vertumnusd.simulate.choice import Choice, adaptive
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.generate import Phase, generate
from vertumnusd.simulate.outcome import Summary, summarise
from vertumnusd.simulate.policies import policy, run_policy
from vertumnusd.simulate.traces import TraceRow, arrivals, halves, read_trace

GENERATOR_SEED = 20_260_901
TUNING_SEED = 1_000  # apart from those that score
KEPT_SHARE, KEPT_MIN = 0.25, 3  # of the parameters tried on the beginning


class Part(Enum):
    """Which of a source's rows a case plays."""

    ALL = "all"
    BEGINNING = "first half, its beginning"
    FIRST = "first half"
    SECOND = "second half"


ROWS_MAX = {Part.BEGINNING: 1_000, Part.FIRST: 4_000, Part.SECOND: 6_000}


@dataclass(frozen=True, slots=True)
class Source:
    """A trace file, or, without one, phases for the generator."""

    name: str
    path: Path | None = None
    phases: tuple[Phase, ...] = ()
    seed: int = GENERATOR_SEED
    rows_max: int = 0  # of a trace; 0: all


@dataclass(frozen=True, slots=True)
class Case:
    source: Source
    part: Part
    rate: float | None  # mean requests/s; None: as recorded
    seed: int
    choice: Choice
    conditions: Conditions


@lru_cache(maxsize=8)
def rows_of(source: Source, part: Part) -> Sequence[TraceRow]:
    """Raises TraceError."""
    if part is not Part.ALL:
        first, second = halves(rows_of(source, Part.ALL))
        return (second if part is Part.SECOND else first)[: ROWS_MAX[part]]
    if source.path is not None:
        return read_trace(source.path)[: source.rows_max or None]
    return generate(source.phases, source.seed)


Tunable = tuple[str, Source, float | None, Conditions]  # name of the policy, and where it runs
Spaces = dict[Tunable, list[Choice]]  # what may be chosen


def run_case(case: Case) -> Summary:
    rows = rows_of(case.source, case.part)
    drawn = arrivals(rows, case.seed, case.conditions.noise_sigma, case.rate)
    return summarise(run_policy(case.choice, drawn, case.conditions))


class Runner:
    """Runs cases, several at once, and says on stderr how far they are."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._stack = ExitStack()
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Runner:
        if self._jobs > 1:
            context = multiprocessing.get_context("spawn")
            self._pool = self._stack.enter_context(ProcessPoolExecutor(self._jobs, context))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, what: str, cases: Sequence[Case]) -> dict[Case, Summary]:
        """Each case once; longest first, so that the last ones end together."""
        distinct = sorted(dict.fromkeys(cases), key=_cost, reverse=True)
        progress = Progress(what, distinct)
        summaries: dict[Case, Summary] = {}
        for case, summary in self._results(distinct):
            summaries[case] = summary
            progress.done(case)
        progress.clear()
        return summaries

    def _results(self, cases: Sequence[Case]) -> Iterable[tuple[Case, Summary]]:
        if self._pool is None:
            yield from ((case, run_case(case)) for case in cases)
            return
        futures = {self._pool.submit(run_case, case): case for case in cases}
        for future in as_completed(futures):
            yield futures[future], future.result()

    def tune(self, wanted: Iterable[Tunable]) -> dict[Tunable, Choice]:
        """The parameters of each policy with the least mean TTFT on the first half."""
        spaces: Spaces = {}
        for key in wanted:
            name, _, _, conditions = key
            spaces[key] = policy(name).candidates(policy(name).proxy or name, conditions)
        spaces = self._best(spaces, Part.BEGINNING, KEPT_SHARE, KEPT_MIN)
        spaces = self._best(spaces, Part.FIRST, 0.0, 1)
        return {key: _named(key[0], choices[0]) for key, choices in spaces.items()}

    def _best(self, spaces: Spaces, part: Part, share: float, at_least: int) -> Spaces:
        """The share of each space with the least mean TTFT, best first."""
        cases = {
            key: [
                Case(source, part, rate, TUNING_SEED, choice, conditions) for choice in spaces[key]
            ]
            for key in spaces
            for _, source, rate, conditions in [key]
            if len(spaces[key]) > at_least
        }
        tried = [case for group in cases.values() for case in group]
        summaries = self.run(f"tuning, {part.value}", tried) if tried else {}
        best = dict(spaces)
        for key, group in cases.items():
            group.sort(key=lambda case: summaries[case].mean_s)
            kept = max(at_least, round(share * len(group)))
            best[key] = [case.choice for case in group[:kept]]
        return best


def _named(name: str, choice: Choice) -> Choice:
    return adaptive(name, choice.composition) if policy(name).proxy else choice


def _cost(case: Case) -> float:
    return policy(case.choice.policy).cost


class Progress:
    """One line on stderr that is written over; on a pipe, a line every ten seconds."""

    def __init__(self, what: str, cases: Sequence[Case]) -> None:
        self._what = what
        self._cases = len(cases)
        self._total = sum(map(_cost, cases))
        self._done = 0.0
        self._ended = 0
        self._started = self._said = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def done(self, case: Case) -> None:
        self._done += _cost(case)
        self._ended += 1
        now = time.monotonic()
        if not self._terminal and now - self._said < 10:
            return
        self._said = now
        elapsed_s = now - self._started
        left_s = elapsed_s * (self._total - self._done) / self._done
        text = f"{self._what}: {self._ended} of {self._cases} runs in {elapsed_s:.0f} s"
        text += f", about {left_s:.0f} s left"
        end = "" if self._terminal else "\n"
        print(f"\r\033[K{text}" if self._terminal else text, end=end, file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
