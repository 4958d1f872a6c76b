"""Copies between real ranks: bitwise equal, right answers after them, and nothing left behind."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from driver import Host, Run, Shape, Worker, chain_of, host
from oracle import Oracle

from vertumnusd.control.lead_run import SendRank
from vertumnusd.control.transfer import TransferLimits, Transfers, delete
from vertumnusd.layout import owner
from vertumnusd.messages import (
    HASH_BYTES,
    BlocksChanged,
    BlocksHeld,
    CopyRefused,
    CopyReleased,
    CopyReserved,
    Installed,
    Pinned,
    Published,
    Reclaim,
    Release,
    Replicate,
    Replicated,
    ReportBlocks,
    Reserved,
    TransferFailed,
)

pytestmark = pytest.mark.ranks

BLOCK = 4
KV_BLOCKS = 32
DICE = random.Random(1)
REPLIES = (Pinned, CopyReserved, CopyRefused, Installed, Published, CopyReleased)


@pytest.fixture(scope="module")
def ranks(checkpoint: Path) -> Iterator[Host]:
    """Four ranks, each a home."""
    shape = Shape(ranks=4, cp_degrees=(1, 2, 4), kv_blocks=KV_BLOCKS)
    with host(checkpoint, shape) as running:
        yield running


class Copies:
    """The coordinator and its ranks; the controller is the test."""

    def __init__(self, ranks: Host) -> None:
        self.ranks = ranks
        self.transfers = Transfers(TransferLimits(bytes_per_s=1e9))
        self.number = 0
        self.ended: dict[int, Replicated | TransferFailed] = {}

    def start(self, tokens: list[int], source: tuple[int, int], to: tuple[int, int]) -> int:
        """Begin to copy the prompt's blocks from one span (base, width) to another."""
        self.number += 1
        chain = chain_of(tokens, BLOCK)
        self.act(
            self.transfers.start(
                0.0,
                Replicate(
                    1, self.number, "intra", chain, 0, source[0], to[0], 9.0, source[1], to[1]
                ),
            )
        )
        return self.number

    def act(self, commands: list[Any]) -> None:
        for command in commands:
            if isinstance(command, SendRank):
                self.ranks.prefill[command.rank].send(command.message)
            else:
                self.ended[command.transfer] = command

    def hear(self) -> None:
        """One answer of some rank that owes one."""
        waiting = [pair for t in self.transfers._transfers.values() for pair in t.waiting]
        kind, rank = DICE.choice(sorted(waiting, key=str))
        kinds = (CopyReserved, CopyRefused) if kind is CopyReserved else (kind,)
        self.act(self.transfers.step(self.ranks.prefill[rank].receive_any(*kinds)))

    def finish(self) -> None:
        while not self.transfers.idle():
            self.hear()

    def replicate(self, *args: Any) -> None:
        number = self.start(*args)
        self.finish()
        assert self.ended[number] == Replicated(number)


def prompt(length: int) -> list[int]:
    return DICE.choices(range(256), k=length)


def cache(worker: Worker, tokens: list[int], **where: int) -> Run:
    run = worker.prefill(tokens, **where)
    worker.release(run)
    return run


def check_hit(worker: Worker, tokens: list[int], oracle: Oracle, **where: int) -> Run:
    """All but the last block come from the cache, and the answer is right."""
    run = worker.reserve(tokens, **where)
    assert run.cached_tokens == (len(tokens) - 1) // BLOCK * BLOCK
    worker.begin(run)
    worker.step(run, 0, 4)
    assert run.first_token == oracle(tokens, 1)[0]
    for state in worker.release(run):
        assert state.pinned_blocks == 0
    return run


def kv(ranks: Host, run: Run) -> torch.Tensor:
    """K and V of the run's cached blocks."""
    found = []
    for block, block_id in enumerate(memoryview(run.block_ids).cast("I")[: run.cached_tokens // 4]):
        pool = ranks.pool(owner(block, run.home_base, run.rotation, run.home_ranks))
        found.append(torch.stack([pool.run(layer, block_id, 1) for layer in range(4)]))
    return torch.stack(found)


def test_a_copy_is_bitwise_equal_and_serves_another_degree(ranks: Host, oracle: Oracle) -> None:
    tokens = prompt(30)
    pair = ranks.worker(2)
    cache(pair, tokens, home_base=1)
    there = check_hit(pair, tokens, oracle, home_base=1)
    Copies(ranks).replicate(tokens, (1, 1), (3, 1))
    here = check_hit(ranks.worker(1, base=3), tokens, oracle)
    assert torch.equal(kv(ranks, there), kv(ranks, here))


def test_a_chain_that_a_split_left_pending_is_made_whole(ranks: Host, oracle: Oracle) -> None:
    """All four ranks have a part; afterwards a pair, then a single rank, has all of it."""
    tokens = prompt(4 * 20 + 1)
    cache(ranks.worker(4), tokens, home_ranks=4)
    pair = ranks.worker(2)
    run = pair.reserve(tokens, home_ranks=2)
    assert run.cached_tokens < 4 * BLOCK
    pair.release(run)
    Copies(ranks).replicate(tokens, (0, 4), (0, 2))
    check_hit(pair, tokens, oracle, home_ranks=2)
    Copies(ranks).replicate(tokens, (0, 2), (3, 1))
    check_hit(ranks.worker(1, base=3), tokens, oracle)


def test_a_prefix_is_kept_on_every_home_of_the_worker_that_computes_it(
    ranks: Host, oracle: Oracle
) -> None:
    """Each home stores from its own reservation, wherever its free blocks are."""
    tokens = prompt(31)
    cache(ranks.worker(1, base=2), prompt(9))  # its ids are not those of the others
    wide = ranks.worker(4)
    run = wide.reserve(tokens, home_base=1)
    extra = wide.reservation(run.request, tokens, True, 2)
    ranks.prefill[2].send(msgspec.structs.replace(extra, blocks=len(tokens) // BLOCK))
    ranks.prefill[2].receive(Reserved)
    wide.begin(run)
    wide.step(run, 0, 4)
    assert run.first_token == oracle(tokens, 1)[0]
    wide.release(run)
    ranks.prefill[2].send(Release(run.request))
    first = check_hit(ranks.worker(1, base=1), tokens, oracle)
    second = check_hit(ranks.worker(1, base=2), tokens, oracle)
    assert first.block_ids != second.block_ids
    assert torch.equal(kv(ranks, first), kv(ranks, second))


def test_reclaimed_blocks_are_computed_again(ranks: Host, oracle: Oracle) -> None:
    alone, tokens = ranks.worker(1), prompt(17)
    cache(alone, tokens)
    peer, chain = ranks.prefill[0], chain_of(tokens, BLOCK)
    peer.send(ReportBlocks())
    held = peer.receive(BlocksHeld)
    last = chain[-HASH_BYTES:]
    assert last in {held.blocks[at : at + 16] for at in range(16, len(held.blocks), 32)}
    peer.forget()
    (stale,) = delete(Reclaim(1, 0, last, (held.version - 1,)))
    (command,) = delete(Reclaim(1, 0, last, (held.version,)))
    peer.send(stale.message)
    peer.send(command.message)
    assert peer.receive(BlocksChanged).evicted == last
    run = alone.prefill(tokens)
    assert run.cached_tokens == 12
    assert run.first_token == oracle(tokens, 1)[0]
    alone.release(run)


def test_a_storm_of_aborts_leaves_answers_right_and_nothing_pinned(
    ranks: Host, oracle: Oracle
) -> None:
    prompts = [prompt(4 * DICE.randrange(4, 12) + 1) for _ in range(4)]
    wide, copies = ranks.worker(4), Copies(ranks)
    spans = [(base, width) for width in (1, 2, 4) for base in range(0, 4, width)]
    for number in range(300):
        if number % 30 == 0:
            tokens = DICE.choice(prompts)
            run = wide.prefill(tokens, home_base=DICE.choice(range(4)))
            assert run.first_token == oracle(tokens, 1)[0]
            ranks.prefill[run.home_base].send(Release(run.request))
        copies.start(DICE.choice(prompts), DICE.choice(spans), DICE.choice(spans))
        for _ in range(DICE.randrange(12)):
            if not copies.transfers.idle():
                copies.hear()
        if DICE.random() < 0.4:
            copies.act(copies.transfers.cancel(1, DICE.randint(1, copies.number)))
    copies.finish()
    assert len(copies.ended) == 300
    assert sum(isinstance(answer, Replicated) for answer in copies.ended.values()) > 20
    for base in range(4):
        alone = ranks.worker(1, base=base)
        for tokens in prompts:
            run = alone.prefill(tokens)
            assert run.first_token == oracle(tokens, 1)[0]
            (state,) = alone.release(run)
            assert (state.pinned_blocks, state.cached_blocks + state.free_blocks) == (0, KV_BLOCKS)
