"""Splits and replication on virtual ranks, as the controller orders them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simple import arrival, conditions

from vertumnusd.messages import (
    BlocksChanged,
    CancelTransfer,
    Reclaim,
    Replicate,
    Replicated,
    TransferFailed,
)
from vertumnusd.simulate.choice import Choice
from vertumnusd.simulate.controlled import run_controlled
from vertumnusd.simulate.names import BlockNames
from vertumnusd.simulate.outcome import Outcome
from vertumnusd.simulate.ranks import VirtualHome, VirtualRank
from vertumnusd.simulate.transfers import Transfers

CONDITIONS = conditions(2, (1, 2))
# 1024 tokens every 0.5 s, the first block always the same: 1 s on CP2, later 0.5 s
OVERLOAD = [arrival(0.5 * n, 1024, 1, 1000 + n) for n in range(200)]


def overloaded() -> Outcome:
    choice = Choice("paper", "1CP2", reconfigures=True, hold_windows=1)
    return run_controlled(choice, OVERLOAD, replace(CONDITIONS, switch_s=0.25))


def idle() -> Outcome:
    """Two workers of degree 1 merge, as there is time for one of degree 2."""
    choice = Choice("ours", "2CP1", reconfigures=True)
    load = [arrival(2.0 * n, 1024, 1, 1000 + n) for n in range(40)]
    return run_controlled(choice, load, replace(CONDITIONS, switch_s=0.25))


def test_an_overloaded_worker_is_split_and_every_request_ends_once():
    outcome = overloaded()
    (conversion,) = outcome.conversions
    assert conversion.before == ("CP2[0-1]",)
    assert conversion.after == ("CP1[0]", "CP1[1]")
    assert conversion.switch_s == pytest.approx(0.25)
    assert conversion.drain_s <= 1.0
    assert outcome.ended == len(OVERLOAD)
    assert (outcome.ttft_s > 0).all()
    assert outcome.degree.tolist()[0] == 2
    assert outcome.degree.tolist()[-1] == 1


def test_idle_workers_merge_and_every_request_ends_once():
    outcome = idle()
    assert [c.after for c in outcome.conversions] == [("CP2[0-1]",)]
    assert (outcome.ended, outcome.degree.tolist()[0], outcome.degree.tolist()[-1]) == (40, 1, 2)


def test_homes_keep_their_blocks_through_a_merge():
    outcome = idle()
    after = outcome.cached_tokens[outcome.degree == 2]
    assert after[0] == 512
    assert outcome.moved_bytes == 0


def test_a_prefix_is_fetched_over_the_link_instead_of_computed_again():
    # two long prompts share 7 of 8 blocks and come when both workers are free: 8 s, and then 1 s
    prompts = [arrival(0.0, 4096, *range(8)), arrival(10.0, 4096, *range(8))]
    prompts += [arrival(10.0, 4096, *range(7), 90 + n) for n in range(3)]
    chosen = replace(conditions(2, (1,)), link_bytes_s=3584 * 98_304)  # a second for 7 blocks
    fetched, without = (
        run_controlled(Choice("ours", "2CP1", left_out=left_out), prompts, chosen)
        for left_out in ((), ("fetch",))
    )
    # at one worker they take 1 s each; two of four at the other one, after a second of copying
    assert without.moved_bytes == 0
    assert fetched.moved_bytes == 3584 * 98_304
    assert sorted(without.ttft_s[1:]) == pytest.approx([1.0, 2.0, 3.0, 4.0])
    assert sorted(fetched.ttft_s[1:]) == pytest.approx([1.0, 2.0, 2.0, 3.0])


def test_a_cancelled_copy_is_never_installed():
    told, names, later = [], BlockNames(), []
    homes = {base: VirtualHome([VirtualRank(base, 8)]) for base in range(2)}
    chain = names.chain((1, 2))
    homes[0].use(chain)
    transfers = Transfers(
        homes,
        lambda base, ranks: homes[base],
        CONDITIONS,
        lambda _, happen: later.append(happen),
        told.append,
    )
    transfers.replicate(0.0, Replicate(1, 1, "fetch", b"".join(chain), 0, 0, 1, 9.0, 1, 1))
    transfers.cancel(CancelTransfer(1, 1))
    later.pop()()
    assert told == [TransferFailed(1, "cancelled")]


def test_kv_owned_at_the_degree_is_moved_when_it_is_first_used_again():
    outcome = overloaded()
    assert outcome.cached_tokens[outcome.degree == 1][0] == 512
    # half of the one shared block, once
    assert outcome.transfers == 1
    assert outcome.moved_bytes == CONDITIONS.block_bytes / 2


class Wire:
    """Two homes of one rank with a link, and what the controller would hear."""

    def __init__(self) -> None:
        self.names = BlockNames()
        self.homes = {base: VirtualHome([VirtualRank(base, 8)]) for base in (0, 1)}
        self.heard: list[object] = []
        self.due: list[tuple[float, object]] = []
        self.transfers = Transfers(
            self.homes,
            lambda base, ranks: self.homes[base],
            CONDITIONS,
            lambda delay_s, happen: self.due.append((delay_s, happen)),
            self.heard.append,
        )

    def chain(self, *blocks: int) -> list[bytes]:
        return self.names.chain(blocks)

    def replicate(self, chain: list[bytes], first_block: int = 0) -> float:
        """Order a copy from home 0 to home 1, let it end; seconds that it took."""
        self.transfers.replicate(
            10.0, Replicate(1, 7, "intra", b"".join(chain), first_block, 0, 1, 30.0, 1, 1)
        )
        delay_s, happen = self.due.pop(0)
        happen()
        return delay_s


def test_a_copy_takes_its_bytes_over_the_link_and_reports_before_it_is_confirmed():
    wire = Wire()
    chain = wire.chain(1, 2)
    wire.homes[0].use(chain)
    assert wire.replicate(chain) == pytest.approx(
        2 * CONDITIONS.block_bytes / CONDITIONS.link_bytes_s
    )
    report, confirmed = wire.heard
    assert isinstance(report, BlocksChanged)
    assert report.rank == 1
    assert report.stored == bytes(16) + chain[0] + chain[0] + chain[1]
    assert confirmed == Replicated(7)
    assert wire.homes[1].leading(chain) == 2


def test_a_second_copy_waits_for_the_link():
    wire = Wire()
    chain = wire.chain(1)
    wire.homes[0].use(chain)
    first_s = wire.replicate(chain)
    assert wire.replicate(chain) == pytest.approx(2 * first_s)


@pytest.mark.parametrize("first_block", [0, 1])
def test_nothing_is_installed_if_a_block_is_gone(first_block):
    wire = Wire()
    chain = wire.chain(1, 2)
    # the source lost the second block; or the destination has not the first, which it should
    wire.homes[0].use(chain[: 1 + first_block])
    wire.replicate(chain, first_block)
    (failed,) = wire.heard
    assert isinstance(failed, TransferFailed)
    assert wire.homes[1].leading(chain) == 0


def test_a_reclaim_deletes_what_is_not_pinned():
    wire = Wire()
    chain = wire.chain(1, 2, 3)
    wire.homes[0].use(chain)
    wire.homes[0].pinned = {7: chain[:2], 8: chain[:1]}
    wire.transfers.reclaim(Reclaim(1, 0, b"".join(reversed(chain)), (1,)))
    wire.due.pop()[1]()
    (report,) = wire.heard
    assert report.evicted == chain[2]
    assert wire.homes[0].leading(chain) == 2
