"""Ranks without tensors: real caches and transfers over pools of marks, moved by a test."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any

from vertumnusd.control.lead_run import SendRank
from vertumnusd.control.transfer import TransferLimits
from vertumnusd.control.transfer import Transfers as Coordinator
from vertumnusd.messages import (
    HASH_BYTES,
    BlocksChanged,
    DeleteBlocks,
    Replicate,
    Reserve,
    Reserved,
    ReserveFailed,
)
from vertumnusd.rank.blocks import NO_PARENT
from vertumnusd.rank.cache import Cache
from vertumnusd.rank.transfer import BlockCopy, Transfers


def chain_of(text: str) -> bytes:
    """One chained hash for each letter, as if a letter were a block."""
    parent, chain = NO_PARENT, b""
    for letter in text:
        parent = blake2b(parent + letter.encode(), digest_size=HASH_BYTES).digest()
        chain += parent
    return chain


class MarkCopier:
    """A pool is a dict from block id to what was written there; a piece is one block."""

    def __init__(self, pools: Sequence[dict[int, Any]], rank: int) -> None:
        self.pools, self.rank = pools, rank

    def pieces(self, copies: Sequence[BlockCopy]) -> Iterator[int]:
        for copy in copies:
            mark = self.pools[copy.source_rank][copy.source_id]
            self.pools[self.rank][copy.target_id] = mark
            yield 1


class Rank:
    """One incarnation of a rank: what it was sent waits in ``inbox``, what it says in ``out``."""

    def __init__(self, world: World, rank: int) -> None:
        self.inbox: deque[Any] = deque()
        self.out: deque[Any] = deque()
        start: Any = SimpleNamespace(rank=rank, kv_blocks=world.kv_blocks)
        link: Any = SimpleNamespace(send=self.out.append)
        self.cache = Cache(start, link)
        self.transfers = Transfers(rank, len(world.pools), self.cache, link)
        self.copier = MarkCopier(world.pools, rank)

    def obey(self) -> None:
        message = self.inbox.popleft()
        if isinstance(message, DeleteBlocks):
            self.cache.reclaim(message)
        else:
            self.transfers.receive(message)

    @property
    def copying(self) -> bool:
        return bool(self.transfers._waiting)

    def copy(self) -> None:
        self.transfers.copy_next(self.copier)

    def names(self) -> dict[bytes, int]:
        """Block ids by name."""
        return {name: held.block_id for name, held in self.cache._table._held.items()}


class World:
    """Some ranks, the coordinator, and all that became of the transfers."""

    def __init__(self, ranks: int = 4, kv_blocks: int = 12) -> None:
        self.kv_blocks = kv_blocks
        self.pools: list[dict[int, Any]] = [{} for _ in range(ranks)]
        self.ranks = [Rank(self, rank) for rank in range(ranks)]
        self.coordinator = Coordinator(TransferLimits(max_running=3, bytes_per_s=1e12))
        self.answers: dict[int, list[Any]] = {}
        self.reports: list[BlocksChanged] = []
        self.prefills: dict[str, tuple[range, bytes]] = {}
        self.now = 0.0

    # --- prefills

    def reserve(self, request: str, chain: bytes, base: int, width: int) -> bool:
        """Reserve and write a chain on a span; False if a rank has no room."""
        span, blocks = range(base, base + width), len(chain) // HASH_BYTES
        message = Reserve(1, 1, request, chain, blocks, blocks, base, width, True)
        for rank in span:
            cache = self.ranks[rank].cache
            cache.reserve(message)
            reply = self.hear(rank, Reserved, ReserveFailed)
            if isinstance(reply, ReserveFailed):
                for done in range(base, rank):
                    self.ranks[done].cache.release(request)
                return False
            reservation = cache.reservation(request)
            assert reservation is not None
            for index, block_id in reservation.fresh.items():
                self.pools[rank][block_id] = chain[index * HASH_BYTES :][:HASH_BYTES]
        self.prefills[request] = (span, chain)
        return True

    def publish(self, request: str) -> None:
        for rank in self.prefills[request][0]:
            reservation = self.ranks[rank].cache.reservation(request)
            if reservation is not None:
                self.ranks[rank].cache.publish(reservation)

    def release(self, request: str) -> None:
        for rank in self.prefills.pop(request)[0]:
            self.ranks[rank].cache.release(request)

    def prefill(self, chain: bytes, base: int, width: int = 1) -> None:
        assert self.reserve("prefill", chain, base, width)
        self.publish("prefill")
        self.release("prefill")

    def hear(self, rank: int, *kinds: type[Any]) -> Any:
        """Take the rank's last word, which is of one of these kinds."""
        message = self.ranks[rank].out.pop()
        assert isinstance(message, kinds), message
        return message

    # --- transfers

    def start(self, command: Replicate) -> None:
        self.answers[command.transfer] = []
        self.act(self.coordinator.start(self.now, command))

    def act(self, commands: Sequence[Any]) -> None:
        for command in commands:
            if isinstance(command, SendRank):
                self.ranks[command.rank].inbox.append(command.message)
            else:
                self.answers[command.transfer].append(command)

    def deliver_out(self, rank: int) -> None:
        message = self.ranks[rank].out.popleft()
        if isinstance(message, BlocksChanged):
            self.reports.append(message)
        elif hasattr(message, "transfer"):
            self.act(self.coordinator.step(message))

    def kill(self, rank: int) -> None:
        """The rank starts anew, on a pool full of rubbish."""
        self.ranks[rank] = Rank(self, rank)
        self.pools[rank].update(dict.fromkeys(range(self.kv_blocks), "rubbish"))
        for request, (span, _) in list(self.prefills.items()):
            if rank in span:
                self.release(request)
        self.act(self.coordinator.lose([rank]))

    def settle(self) -> None:
        """Let everything happen that still can."""
        busy = True
        while busy:
            busy = False
            for number, rank in enumerate(self.ranks):
                while rank.inbox:
                    rank.obey()
                while rank.copying:
                    rank.copy()
                while rank.out:
                    busy = True
                    self.deliver_out(number)
            busy |= any(rank.inbox for rank in self.ranks)

    def some_event(self, dice: random.Random) -> None:
        """One message, or one piece of a copy, somewhere."""
        rank = dice.randrange(len(self.ranks))
        member = self.ranks[rank]
        can = [
            *([member.obey] if member.inbox else []),
            *([member.copy] if member.copying else []),
            *([lambda: self.deliver_out(rank)] if member.out else []),
        ]
        if can:
            dice.choice(can)()

    # --- what must hold

    def check(self) -> None:
        """Whatever has a name holds what the name says."""
        for pool, rank in zip(self.pools, self.ranks, strict=True):
            for name, block_id in rank.names().items():
                assert pool[block_id] == name

    def check_at_rest(self) -> None:
        """Nothing is pinned, reserved or under way, and every transfer had one answer."""
        assert self.coordinator.idle()
        assert all(len(answers) == 1 for answers in self.answers.values())
        for rank in self.ranks:
            table = rank.cache._table
            assert (table.pinned_blocks, rank.transfers._incoming) == (0, {})
            assert table.cached_blocks + table.free_blocks == self.kv_blocks
