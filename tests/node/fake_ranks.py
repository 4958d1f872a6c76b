"""A node's hub over fake ranks: real controller, leads, answers and block tables; no model.

Messages wait in queues, one per direction and rank, and a test decides whose turn it is. A fake
prefill writes marks instead of KV and a fake pull checks them, so that a block used by two requests
at once, or freed while it is read, is noticed.
"""

from __future__ import annotations

import re
from array import array
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pytest

from vertumnusd.control.controller import Controller, IllegalEvent, Settings
from vertumnusd.control.prefill_time import Coefficients, PrefillTime
from vertumnusd.control.settings import ReplicationSettings
from vertumnusd.control.step_order import StepLimits
from vertumnusd.control.transfer import TransferLimits
from vertumnusd.layout import owner
from vertumnusd.messages import (
    HASH_BYTES,
    Adopt,
    Adopted,
    Answer,
    Begin,
    Close,
    Closed,
    ControlCommand,
    Converted,
    DeleteBlocks,
    Discard,
    Drawn,
    Failed,
    Finished,
    Generate,
    Merge,
    Open,
    Park,
    Parked,
    Pull,
    Pulled,
    RankDown,
    RankUp,
    Refused,
    Release,
    ReportBlocks,
    Reserve,
    Sampling,
    Split,
    Step,
    StepDone,
    Token,
)
from vertumnusd.node.effects import Effects
from vertumnusd.node.hashing import chain
from vertumnusd.node.hub import Hub
from vertumnusd.node.leads import LeadSettings
from vertumnusd.node.records import Records
from vertumnusd.node.service import Job
from vertumnusd.rank.cache import Cache
from vertumnusd.rank.transfer import Transfers

BLOCK, LAYERS, EOS = 4, 6, 1
NO_COPIES = ReplicationSettings()


def token_at(request: str, position: int) -> int:
    """The fake model: what it draws depends on the request and the place alone."""
    return 10 + crc32(f"{request}/{position}".encode()) % 1000


def expected(request: str, count: int) -> list[int]:
    """The whole answer."""
    return [token_at(request, position) for position in range(count)]


class FakePrefillRank:
    """Follows the protocol of a prefill rank at once and in order."""

    def __init__(self, world: World, rank: int) -> None:
        settings = world.settings
        start = SimpleNamespace(rank=rank, kv_blocks=settings.kv_blocks)
        self.world, self.rank = world, rank
        self.out: deque = deque()
        link = SimpleNamespace(send=self.out.append)
        self.cache = Cache(start, link)  # type: ignore[arg-type]
        self.transfers = Transfers(rank, 4, self.cache, link)  # type: ignore[arg-type]
        self.begun: dict[str, Begin] = {}
        self.chains: dict[str, Reserve] = {}
        self.geometry: Adopt | None = None

    def obey(self, message) -> None:
        match message:
            case Adopt():
                self.geometry = message
                self.out.append(Adopted(self.rank, message.term, message.epoch, message.degree))
            case Park():
                assert not self.begun, "a drained worker owes no step"
                self.geometry = None
                self.out.append(Parked(self.rank, message.term, message.epoch))
            case Reserve():
                self.chains[message.request] = message
                self.cache.reserve(message)
            case Begin():
                assert (message.term, message.epoch) == (self.geometry.term, self.geometry.epoch)
                self.begun[message.request] = message
            case Step():
                self.step(message)
            case Discard():
                self.begun.pop(message.request, None)
            case Release():
                self.cache.release(message.request)
            case DeleteBlocks():
                self.cache.reclaim(message)
            case ReportBlocks():
                self.cache.report_all()
            case _:
                self.transfers.receive(message)

    def copy_piece(self) -> bool:
        """False if there is nothing to copy."""
        if not self.transfers._waiting:
            return False
        self.transfers.copy_next(self)
        return True

    def pieces(self, copies):
        """The copier of its transfers: a piece is a block."""
        for source, source_id, target_id in copies:
            self.world.pools[self.rank][target_id] = self.world.pools[source][source_id]
            yield 1

    def step(self, step: Step) -> None:
        drawn = {}
        for part in step.parts:
            begin = self.begun[part.request]
            reservation = self.cache.reservation(part.request)
            if reservation is not None:
                self.write(begin, reservation)
            if step.last_layer < LAYERS:
                continue
            del self.begun[part.request]
            if reservation is not None:
                self.cache.publish(reservation)
            if self.rank == self.geometry.base:
                drawn[part.request] = token_at(part.request, begin.position)
        self.out.append(StepDone(self.rank, step.epoch, step.seq, 0.1, drawn))

    def write(self, begin: Begin, reservation) -> None:
        pool = self.world.pools[self.rank]
        writable = reservation.writable(begin.cached_tokens // BLOCK)
        for index, block_id in writable.items():
            pool[block_id] = mark(self.chains[begin.request].chain, begin.request, index)


def parse(worker: str) -> tuple[int, int]:
    """Degree and base of a worker's name."""
    degree, base = re.match(r"CP(\d+)\[(\d+)", worker).groups()
    return int(degree), int(base)


def mark(hashes: bytes, request: str, index: int) -> bytes | str:
    """What stands in a block: its hash, or for the tail whose it is."""
    whole = hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES]
    return whole or f"tail of {request}"


class FakeDecodeRank:
    """Draws one token for every running request when it is asked to beat."""

    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank = world, rank
        self.out: deque = deque()
        self.open: dict[str, int] = {}  # blocks
        self.running: dict[str, list[int]] = {}  # [position, tokens left]
        self.spoiled: dict[str, str] = {}  # pulled something else: fine unless it is then used

    def obey(self, message) -> None:
        match message:
            case Open():
                self.open[message.request] = message.blocks
                self.spoiled.pop(message.request, None)
                assert sum(self.open.values()) <= self.world.settings.decode_kv_blocks
            case Pull():
                if message.request in self.open:
                    self.check(message)
                self.out.append(Pulled(self.rank, message.request, message.last_layer, 1, 0.1))
            case Generate():
                if message.request in self.open:
                    assert message.request not in self.spoiled, self.spoiled
                    self.running[message.request] = [message.position + 1, message.max_new_tokens]
            case Close():
                self.running.pop(message.request, None)
                if self.open.pop(message.request, None) is not None:
                    self.out.append(Closed(self.rank, message.request, 0))

    def check(self, pull: Pull) -> None:
        hashes = self.world.chains[pull.request]
        for index, block_id in enumerate(array("I", pull.block_ids)):
            rank = owner(index, pull.home_base, pull.rotation, pull.home_ranks)
            found = self.world.pools[rank].get(block_id)
            if found != mark(hashes, pull.request, index):
                self.spoiled[pull.request] = f"block {index} is {found!r}"

    def beat(self) -> None:
        drawn = []
        for request, state in list(self.running.items()):
            position, left = state
            drawn.append((request, token_at(request, position), "length" if left == 1 else ""))
            state[0], state[1] = position + 1, left - 1
            if left == 1:
                del self.running[request]
        if drawn:
            self.out.append(Drawn(self.rank, *map(tuple, zip(*drawn, strict=True))))


class World:
    """The hub, its ranks, its clients' answers, and a clock that a test moves."""

    def __init__(
        self,
        *,
        composition: str = "1CP2/2CP1",
        home_ranks: int = 1,
        replication: ReplicationSettings = NO_COPIES,
        **settings: Any,
    ) -> None:
        degrees = (2, 4) if home_ranks == 2 else (1, 2)
        self.settings = Settings(
            cp_degrees=degrees,
            ranks=4,
            home_ranks=home_ranks,
            composition=composition,
            block_tokens=BLOCK,
            kv_blocks=24,
            decode_ranks=1,
            decode_kv_blocks=40,
            max_queue_tokens=100_000,
            max_queue_s=1e6,
            unplaced_wait_s=1e6,
            mark_tokens=BLOCK,
            replication=replication,
            **settings,
        )
        self.now = 0.0
        self.records: Records | None = None
        self.reports: list[ControlCommand | Refused] = []
        self.hear: list[Callable[[ControlCommand], None]] = []  # of each report
        self.answers: dict[str, list[Answer]] = {}
        self.chains: dict[str, bytes] = {}
        self.pools: list[dict[int, bytes | str]] = [{} for _ in range(4)]
        self.inbox: dict[int, deque] = {rank: deque() for rank in range(5)}
        self.incarnation = 0
        prefill_time = PrefillTime(Coefficients(0.01, 0, 0, 0.01, 0))
        self.hub = Hub(
            Controller(self.settings, prefill_time),
            LeadSettings(BLOCK, LAYERS, prefill_time, StepLimits(0.1), 5.0),
            Effects(
                now=lambda: self.now,
                send=lambda rank, message: self.inbox[rank].append(message),
                kill=lambda rank: None,
                emit=self._emit,
                report=self._report,
                illegal=lambda event, reason: pytest.fail(f"{event}: {reason}"),
                chain=self._chain,
            ),
            TransferLimits(),
        )
        self.hub.take_seat(1)
        self.ranks: dict[int, FakePrefillRank | FakeDecodeRank] = {}
        for rank in range(5):
            self.start(rank)

    def start(self, rank: int) -> None:
        self.incarnation += 1
        kind = "decode" if rank == 4 else "prefill"
        self.ranks[rank] = (FakeDecodeRank if rank == 4 else FakePrefillRank)(self, rank)
        self.hub.rank_up(RankUp(rank, kind, self.incarnation))

    def kill(self, rank: int) -> None:
        """Kill the rank and those that live and die with it, and start them anew."""
        root = [4] if rank == 4 else [r for r in range(4) if r // 2 == rank // 2]
        if self.settings.home_ranks == 2 and rank < 4:
            root = [0, 1, 2, 3]
        for member in root:
            self.inbox[member].clear()
            self.ranks.pop(member)
            if member < 4:
                self.pools[member].clear()
        kind = "decode" if rank == 4 else "prefill"
        self.hub.rank_down(RankDown(root[0], kind, "killed", tuple(root[1:])))
        for member in root:
            assert not self.inbox[member], "nothing is sent to a rank that is known to be dead"
            self.start(member)

    def convert(self, kind: type[Split] | type[Merge], worker: str) -> bool:
        """Split this worker, or merge its parts into it, if that can be done now."""
        degree, base = parse(worker)
        try:
            self.hub.command(kind(degree, base))
        except IllegalEvent:
            return False
        return True

    def conversions(self) -> list[Converted]:
        return [report for report in self.reports if isinstance(report, Converted)]

    def workers(self) -> list[str]:
        """Names of those that serve."""
        workers = self.hub.snapshot()["workers"]
        return [worker["name"] for worker in workers if worker["state"] == "serving"]

    def submit(self, request: str, tokens: list[int], max_new_tokens: int) -> None:
        self.answers[request] = []
        self.hub.submit(Job(request, self.now, tokens, max_new_tokens, Sampling(), (EOS,)))

    def _report(self, happened: ControlCommand | Refused) -> None:
        self.reports.append(happened)
        for listener in self.hear:
            listener(happened)

    def _emit(self, request: str, event: Answer) -> None:
        self.answers[request].append(event)
        if self.records is not None:
            self.records.answered(request, event)

    def _chain(self, tokens: list[int], salt: bytes) -> bytes:
        return chain(tokens, BLOCK, salt)

    def deliver_in(self, rank: int) -> bool:
        """Let the rank obey its next message, or copy something if there is none."""
        if not self.inbox[rank]:
            member = self.ranks[rank]
            return isinstance(member, FakePrefillRank) and member.copy_piece()
        message = self.inbox[rank].popleft()
        if isinstance(message, Reserve):
            self.chains[message.request] = message.chain
        self.ranks[rank].obey(message)
        return True

    def deliver_out(self, rank: int) -> bool:
        """Let the hub hear the rank's next message."""
        out = self.ranks[rank].out
        if not out:
            return False
        self.hub.from_rank(out.popleft())
        return True

    def settle(self) -> None:
        """Let everything happen that still can."""
        busy = True
        while busy:
            busy = False
            for rank in list(self.ranks):
                busy |= self.deliver_in(rank)
                busy |= self.deliver_out(rank)
            decode = self.ranks[4]
            if decode.running:
                decode.beat()
                busy = True

    def tokens(self, request: str) -> list[int]:
        return [event.token for event in self.answers[request] if isinstance(event, Token)]

    def endings(self, request: str) -> list[Answer]:
        return [e for e in self.answers[request] if isinstance(e, Finished | Failed)]


def assert_all_answered(world: World, wanted: dict[str, int], left: set[str]) -> None:
    """Nobody hears a wrong token or a second end; who stayed has all the tokens it wanted."""
    for name, count in wanted.items():
        tokens, endings = world.tokens(name), world.endings(name)
        assert len(endings) <= 1
        assert tokens == expected(name, len(tokens))
        if name not in left:
            assert [type(e) for e in endings] == [Finished], (name, endings)
            assert len(tokens) == count


def assert_base_line(world: World) -> None:
    assert world.hub.idle(), world.hub.snapshot()
    assert not world.hub.snapshot()["requests"]
    for rank in range(4):
        assert world.ranks[rank].cache._table.pinned_blocks == 0
        assert not world.ranks[rank].begun
    assert not world.ranks[4].open
