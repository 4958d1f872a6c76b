"""A virtual worker does what a lead and its ranks do: both are given the same requests."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

import pytest

from vertumnusd.control.fleet import Worker
from vertumnusd.control.lead import FirstToken, Lead, Prefill, SendRank
from vertumnusd.control.lead_run import Geometry
from vertumnusd.control.prefill_time import Coefficients, PrefillTime, packed_s
from vertumnusd.control.step_order import StepLimits
from vertumnusd.messages import (
    Dispatch,
    Drained,
    DrainWorker,
    PrefillDone,
    Reserve,
    Reserved,
    Returned,
    Sampling,
    Step,
    StepDone,
)
from vertumnusd.simulate import worker as worker_module
from vertumnusd.simulate.worker import VirtualRun, VirtualWorker

BLOCK, LAYERS = 16, 12
TIMES = PrefillTime(Coefficients(0.05, 0, 0, 0.01, 1e-6))
GEOMETRY = Geometry(1, 1, range(1), BLOCK, LAYERS, TIMES)
LIMITS = StepLimits(step_s=0.3, max_paused=2, pack_requests=3, pack_tokens=80)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[tuple[float, int, Callable[[], None]]] = []
        self.order = count()

    def at(self, at_s: float, happen: Callable[[], None]) -> None:
        heappush(self.due, (at_s, next(self.order), happen))

    def run(self) -> None:
        while self.due:
            self.now, _, happen = heappop(self.due)
            happen()


class Request:
    """Requests of the same family have one first block; ``noise``: actual over predicted time."""

    def __init__(self, name: str, tokens: int, family: int, noise: float) -> None:
        blocks = tokens // BLOCK
        names = [b"%8d%8d" % (family, n) for n in range(min(blocks, 2))]
        names += [name.encode().rjust(8) + b"%8d" % n for n in range(2, blocks)]
        self.name, self.tokens, self.noise, self.names = name, tokens, noise, names
        self.dispatch = Dispatch(1, 1, name, 0, "CP1[0]", 1, 0, 0, 1, 0.0, -1, 0)

    def cached(self, held: set[bytes]) -> int:
        usable = self.names[: (self.tokens - 1) // BLOCK]
        return next((n for n, block in enumerate(usable) if block not in held), len(usable))

    def alone_s(self, cached_blocks: int) -> float:
        cached = BLOCK * cached_blocks
        return self.noise * TIMES.predict_s(1, self.tokens - cached, cached)


class Played:
    """When requests were over or given back, how long they computed and should have by Ê, and when
    the worker was drained."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.held: set[bytes] = set()
        self.requests: dict[str, Request] = {}
        self.log: list[tuple[str, str, float]] = []

    def note(self, what: str, request: str = "") -> None:
        self.log.append((what, request, self.clock.now))

    def note_pace(self, request: str, measured_s: float, expected_s: float) -> None:
        self.log += [("measured", request, measured_s), ("expected", request, expected_s)]


class Virtual(Played):
    """A VirtualWorker and its host."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.at = clock.at
        self.worker = VirtualWorker(Worker(1, 0), GEOMETRY, LIMITS, self)

    def admit(self, request: Request) -> None:
        self.requests[request.name] = request
        chain = b"".join(request.names)
        run = VirtualRun(request.dispatch, request.names, chain, request.tokens, GEOMETRY)
        self.worker.admit(self.clock.now, run)

    def drain(self, patience_s: float) -> None:
        command = DrainWorker(1, 1, 1, "CP1[0]", 1, 0, patience_s, 0.0)
        self.worker.drain(self.clock.now, command)

    def reserve(self, run: VirtualRun) -> None:
        request = self.requests[run.dispatch.request]
        blocks = request.cached(self.held)
        run.cached_tokens = BLOCK * blocks
        run.predicted_s = TIMES.predict_s(1, run.uncached_tokens, run.cached_tokens)
        run.actual_s, run.overhead_s = request.alone_s(blocks), TIMES.overhead_s(1)

    def store(self, run: VirtualRun) -> None:
        self.held.update(run.names)

    def ended(self, run: VirtualRun) -> None:
        self.note("ended", run.dispatch.request)
        self.note_pace(run.dispatch.request, run.elapsed_s, run.expected_s)

    def returned(self, run: VirtualRun) -> None:
        self.note("returned", run.dispatch.request)

    def drained(self, worker: VirtualWorker) -> None:
        self.note("drained")


class Real(Played):
    """A Lead and one rank, which computes in the same time."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.lead = Lead(
            term=1,
            epoch=1,
            degree=1,
            base=0,
            block_tokens=BLOCK,
            layers=LAYERS,
            prefill_time=TIMES,
            limits=LIMITS,
            progress_timeout_s=1e9,
        )
        self.steps: list[Step] = []
        self.alone_s: dict[str, float] = {}

    def admit(self, request: Request) -> None:
        self.requests[request.name] = request
        tokens = array("I", bytes(4 * request.tokens)).tobytes()
        chain = b"".join(request.names)
        prefill = Prefill(request.dispatch, tokens, chain, Sampling(), 0, True)
        self.hear(self.lead.admit(self.clock.now, prefill))

    def drain(self, patience_s: float) -> None:
        self.hear(self.lead.drain(self.clock.now, 1, patience_s))
        later = self.clock.now + patience_s
        self.clock.at(later, lambda: self.hear(self.lead.tick(later)))

    def hear(self, commands) -> None:
        for command in commands:
            match command:
                case SendRank(_, Reserve() as reserve):
                    self.reserve(self.requests[reserve.request], reserve)
                case SendRank(_, Step() as step):
                    self.steps.append(step)
                    if len(self.steps) == 1:
                        self.begin()
                case FirstToken():
                    self.note("ended", command.request)
                case PrefillDone():
                    self.note_pace(command.request, command.prefill_s, command.expected_s)
                case Returned():
                    self.note("returned", command.request)
                case Drained():
                    self.note("drained")

    def reserve(self, request: Request, reserve: Reserve) -> None:
        cached = request.cached(self.held)
        self.alone_s[request.name] = request.alone_s(cached)
        ids = array("I", range(reserve.blocks)).tobytes()
        self.hear(self.lead.step(self.clock.now, Reserved(0, 1, request.name, cached, ids)))

    def begin(self) -> None:
        step = self.steps[0]
        each_s = [self.alone_s[part.request] for part in step.parts]
        share = (step.last_layer - step.first_layer) / LAYERS
        elapsed_s = share * packed_s(each_s, TIMES.overhead_s(1))
        self.clock.at(self.clock.now + elapsed_s, lambda: self.end(elapsed_s))

    def end(self, elapsed_s: float) -> None:
        step = self.steps.pop(0)
        drawn = {}
        if step.last_layer == LAYERS:
            drawn = {part.request: 1 for part in step.parts}
            for request in drawn:
                self.held.update(self.requests[request].names)
        if self.steps:
            self.begin()
        self.hear(self.lead.step(self.clock.now, StepDone(0, 1, step.seq, elapsed_s, drawn)))


def play(kind: type[Virtual] | type[Real], seed: int) -> list[tuple[str, str, float]]:
    """Random requests, some of which share a prefix, and a drain at some time."""
    dice, clock = random.Random(seed), Clock()
    worker = kind(clock)
    at_s = 0.0
    for n in range(dice.randrange(1, 30)):
        at_s += dice.expovariate(1.5) if dice.random() < 0.8 else 5.0
        tokens = dice.choice((3, 10, 20, 40, 200, 600))
        request = Request(f"r{n}", tokens, dice.randrange(3), dice.uniform(0.8, 1.25))
        clock.at(at_s, lambda request=request: worker.admit(request))
    patience_s = dice.choice((0.0, 1.0, 20.0))
    clock.at(dice.uniform(0, at_s), lambda: worker.drain(patience_s))
    clock.run()
    return worker.log


def alike(one, other) -> bool:
    """The same happened to the same requests at the same times."""
    one, other = sorted(one), sorted(other)
    same = [entry[:2] for entry in one] == [entry[:2] for entry in other]
    return same and [e[2] for e in one] == pytest.approx([e[2] for e in other])


@pytest.mark.parametrize("seed", range(150))
def test_a_virtual_worker_takes_the_time_of_a_lead_and_its_ranks(seed):
    assert alike(play(Virtual, seed), play(Real, seed))


MUTANTS = {
    "wake up at the beginning of the run": ("_catch_up", lambda worker, now: worker._fill(now)),
    "keep one ahead too few": ("STEPS_AHEAD", 0),
    "look up what follows at once": ("follows", lambda run, ahead: False),
    "count no bypass": ("count_bypass", lambda runs, pack, step_s: None),
    "pay for each of a pack": ("packed_s", lambda each_s, overhead_s: sum(each_s)),
    "know the pace": ("pack_s", lambda pack: sum(run.actual_s for run in pack)),
    "sleep though others wait": (
        "_alone",
        lambda worker: worker._steps[0].pack[0] if worker._steps else None,
    ),
    "forget what was computed in sleep": ("_slept_s", lambda worker, run: 0.0),
    "never lose patience": ("_lose_patience", lambda worker, command: None),
}


@pytest.mark.patches
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_virtual_worker_is_caught(name, monkeypatch):
    attribute, broken = MUTANTS[name]
    owner = VirtualWorker if hasattr(VirtualWorker, attribute) else worker_module
    monkeypatch.setattr(owner, attribute, broken)
    assert any(is_caught(seed) for seed in range(150)), f"{name}: all went alike"


def is_caught(seed: int) -> bool:
    try:
        return not alike(play(Virtual, seed), play(Real, seed))
    except (ValueError, IndexError, AssertionError):
        return True
