"""Random lives of a lead: every request ends once, and whatever was begun for it is given back."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from leads import DECODE, new_lead, prefill, u32

from vertumnusd.control.lead import FirstToken, SendRank
from vertumnusd.control.step_order import StepLimits
from vertumnusd.messages import (
    Begin,
    Discard,
    Drained,
    HandedOff,
    Pull,
    Pulled,
    Release,
    Reserve,
    Reserved,
    ReserveFailed,
    Returned,
    RoomMissing,
    Step,
    StepDone,
    StepFailed,
)

RANKS, LAYERS = 2, 6
LIMITS = StepLimits(step_s=0.4, max_paused=1, pack_requests=3, pack_tokens=60)
ENDS = (HandedOff, Returned, RoomMissing)


class Life:
    """The ranks of a worker of degree 2, homes of one rank, and a decode rank; all may be slow."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.lead = new_lead(degree=RANKS, prefill_s=0.1, token_s=0.02, limits=LIMITS)
        self.now = 0.0
        self.number = 0
        self.inbox: dict[int, list] = {rank: [] for rank in range(RANKS)}
        self.pulls: list[Pull] = []
        self.layers: dict[str, int] = {}  # next layer of what has begun, by what was sent to rank 0
        self.reserved: set[str] = set()
        self.drawn: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.drained = 0

    def hear(self, commands) -> None:
        for command in commands:
            match command:
                case SendRank(rank, Pull() as pull):
                    assert rank == DECODE
                    self.pulls.append(pull)
                case SendRank(rank, message):
                    self.inbox[rank].append(message)
                    if rank == 0:
                        self.check(message)
                case FirstToken():
                    self.drawn[command.request] += 1
                case HandedOff() | Returned() | RoomMissing():
                    self.ends[command.request] += 1
                    assert command.request not in self.reserved, "its blocks are released before"
                    assert all(pull.request != command.request for pull in self.pulls)
                    assert command.request not in self.stepping()
                case Drained():
                    self.drained += 1
                    assert not self.lead.requests
        assert len(self.layers) <= LIMITS.max_paused + 1

    def stepping(self) -> set[str]:
        """Requests of the steps that a rank has still to run."""
        steps = (m for inbox in self.inbox.values() for m in inbox if isinstance(m, Step))
        return {part.request for step in steps for part in step.parts}

    def check(self, message) -> None:
        match message:
            case Begin():
                self.layers[message.request] = 0
            case Step():
                assert len(message.parts) <= LIMITS.pack_requests
                for part in message.parts:
                    assert self.layers[part.request] == message.first_layer, "in order, each once"
                    self.layers[part.request] = message.last_layer
                    if message.last_layer == LAYERS:
                        del self.layers[part.request]
            case Discard():
                self.layers.pop(message.request, None)
            case Release():
                self.reserved.discard(message.request)

    # --- what may happen

    def admit(self) -> None:
        self.number += 1
        tokens = self.dice.choice((3, 12, 40, 120, 400, 1200))
        chain = self.dice.choice((b"", bytes(16 * (tokens // 4))))
        self.hear(self.lead.admit(self.now, prefill(f"r{self.number}", tokens, chain)))

    def abort(self) -> None:
        if self.lead.requests:
            self.hear(self.lead.abort(self.now, self.dice.choice(self.lead.requests)))

    def answer(self) -> None:
        """A rank obeys its next message."""
        rank = self.dice.choice([rank for rank in self.inbox if self.inbox[rank]] or [None])
        if rank is None:
            return
        match self.inbox[rank].pop(0):
            case Reserve() as reserve:
                self.reserve(rank, reserve)
            case Step() as step:
                self.step(rank, step)

    def reserve(self, rank: int, reserve: Reserve) -> None:
        if self.dice.random() < 0.1:
            self.hear(self.lead.step(self.now, ReserveFailed(rank, 5, reserve.request, 3, 0)))
            return
        self.reserved.add(reserve.request)
        first = self.dice.randint(0, reserve.max_cached)
        ids = u32(*range(reserve.blocks))
        self.hear(self.lead.step(self.now, Reserved(rank, 5, reserve.request, first, ids)))

    def step(self, rank: int, step: Step) -> None:
        self.now += self.dice.choice((0.01, 0.4))
        drawn = {}
        for part in step.parts:
            if self.dice.random() < 0.03:
                failed = StepFailed(rank, 5, step.seq, part.request, "out of memory")
                self.hear(self.lead.step(self.now, failed))
            elif step.last_layer == LAYERS and rank == 0:
                drawn[part.request] = 7
        self.hear(self.lead.step(self.now, StepDone(rank, 5, step.seq, 0.2, drawn)))

    def pull(self) -> None:
        if self.pulls:
            pull = self.pulls.pop(0)
            pulled = Pulled(DECODE, pull.request, pull.last_layer, 1, 0.1)
            self.hear(self.lead.step(self.now, pulled))

    def drain(self) -> None:
        self.hear(self.lead.drain(self.now, self.number, self.dice.choice((0.0, 1.0))))

    def resume(self) -> None:
        self.hear(self.lead.resume(self.now))

    def pass_time(self) -> None:
        self.now += 0.5
        self.hear(self.lead.tick(self.now))

    def play(self, actions: int) -> None:
        kinds = [self.answer] * 12 + [self.pull] * 4 + [self.admit] * 3
        kinds += [self.abort, self.pass_time, self.drain, self.resume]
        for _ in range(actions):
            self.dice.choice(kinds)()

    def end(self) -> None:
        """Drain for good; everything must come to its end."""
        self.lead.resume(self.now)
        drained = self.drained
        self.hear(self.lead.drain(self.now, -1, 1.0))
        for _ in range(10_000):
            if not self.lead.requests:
                break
            self.answer()
            self.pull()
            self.pass_time()
        assert self.drained == drained + 1


@pytest.mark.parametrize("seed", range(150))
def test_random_lives(seed: int) -> None:
    life = Life(seed)
    life.play(300)
    life.end()
    assert life.ends == Counter({f"r{n + 1}": 1 for n in range(life.number)})
    assert not life.reserved
    assert not life.layers
    assert all(count == 1 for count in life.drawn.values())
