"""What a made-up cluster knows of itself: what is up, held, pinned and running.

``obey`` takes the controller's commands in, ``check`` asserts what must hold after every event:
each request ends once, nothing is promised twice, every rank is in one worker, epochs rise, none is
parked that still works, no prefix is claimed that is not there, and the controller's view of the
workers is right.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from scenario import PREFILL_TIME

from vertumnusd.control.controller import Settings
from vertumnusd.control.dispatcher import SMALL_PART
from vertumnusd.control.fleet import Worker
from vertumnusd.control.worker_queue import PAUSING_MAX
from vertumnusd.layout import owner, rotation
from vertumnusd.messages import (
    Abort,
    Adopted,
    AdoptWorker,
    BlocksChanged,
    CancelTransfer,
    ControlCommand,
    ControlEvent,
    Converted,
    Converting,
    Dispatch,
    DrainWorker,
    Exposed,
    Lost,
    Park,
    Parked,
    Placed,
    PrefillDone,
    Reclaim,
    Reject,
    Replicate,
    Resume,
    Returned,
    RoomMissing,
    Submit,
    Withdrawn,
)


@dataclass(eq=False)
class Client:
    """A request as its gateway sees it. ``ends`` must have one entry in the end."""

    submit: Submit
    ends: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Run:
    """A dispatched attempt, as the ranks carry it out."""

    dispatch: Dispatch
    submit: Submit
    stage: str = "admitted"  # then "prefilling", "handing off", "decoding"
    aborted: bool = False
    lost: bool = False  # the controller has forgotten it; the ranks have not yet
    cached_tokens: int = 0  # in its home, when it was dispatched


@dataclass(eq=False)
class Pool:
    """One prefill rank's process and its blocks."""

    up: bool = False
    version: int = 0
    held: set[bytes] = field(default_factory=set)
    pins: dict[str, int] = field(default_factory=dict)  # by request; "" is nobody's


class Books:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.clients: dict[str, Client] = {}
        self.runs: dict[str, Run] = {}
        self.pools = [Pool() for _ in range(settings.ranks)]
        self.decode_up: set[int] = set()
        self.adopting: dict[Worker, AdoptWorker] = {}
        self.unacknowledged: list[Adopted | Parked] = []
        self.draining: dict[str, DrainWorker] = {}  # exposed workers
        self.drained: set[str] = set()  # … whose leads said so
        self.transfers: dict[int, tuple[Replicate, float]] = {}  # and their deadlines
        self.cancelled: set[int] = set()  # of these
        self.parked_at: dict[int, int] = {}  # by rank: the epoch of its last Park
        self.fetching: dict[str, tuple[str, int]] = {}  # where a request waits for which copy
        self.reclaims: list[Reclaim] = []
        self.now = 0.0
        self.converting: dict[int, Converting] = {}
        self.exposed: dict[str, AdoptWorker] = {}
        self.refused: dict[str, Run] = {}  # worker → what a home of it had no room for
        self.last_epoch = 0

    # --- what is there

    def waiting(self) -> list[Client]:
        return [client for client in self.clients.values() if not client.ends]

    def too_large(self, client: Client) -> bool:
        """No worker that serves could hold its chain."""
        largest = max((exposed.degree for exposed in self.exposed.values()), default=0)
        return self.settings.blocks(client.submit.input_tokens) > largest * self.settings.kv_blocks

    def up(self) -> list[int]:
        return [*(rank for rank, pool in enumerate(self.pools) if pool.up), *sorted(self.decode_up)]

    def down(self) -> list[int]:
        ranks = range(self.settings.ranks + self.settings.decode_ranks)
        return sorted(set(ranks) - set(self.up()))

    def home(self, run: Run) -> range:
        """The ranks of its span."""
        return range(run.dispatch.home_base, run.dispatch.home_base + run.dispatch.home_ranks)

    def share(self, run: Run) -> int:
        """Blocks that each rank of the span needs for a request, at most."""
        return -(-self.settings.blocks(run.submit.input_tokens) // run.dispatch.home_ranks)

    def fresh_share(self, run: Run) -> int:
        """Of these, those not found in the cache at dispatch."""
        tokens = run.submit.input_tokens - run.cached_tokens
        return -(-self.settings.blocks(tokens) // run.dispatch.home_ranks)

    def room(self, rank: int) -> int:
        return self.settings.kv_blocks - sum(self.pools[rank].pins.values())

    def has_room(self, run: Run) -> bool:
        return all(self.room(rank) >= self.share(run) for rank in self.home(run))

    def cached_tokens(self, home: int, submit: Submit) -> int:
        held = self._held(home)
        length = 0
        for block in split(submit.chain):
            if block not in held:
                break
            length += 1
        return min(length, (submit.input_tokens - 1) // 10) * 10

    def span_tokens(self, base: int, ranks: int, submit: Submit) -> int:
        """What lies on a span of several homes, each block at its owner's."""
        length = 0
        for index, block in enumerate(split(submit.chain)):
            if block not in self.pools[base + (index + block[0]) % ranks].held:
                break
            length += 1
        return min(length, (submit.input_tokens - 1) // 10) * 10

    # --- events and commands

    def expect(self, event: ControlEvent) -> None:
        """Before the controller hears of it."""
        if not isinstance(event, BlocksChanged | Submit | PrefillDone):
            self.refused.clear()  # these are no reason to try again what had no room
        if isinstance(event, RoomMissing):
            run = self.runs.pop(event.request)
            if not run.aborted and run.dispatch.worker not in self.draining:
                self.refused[run.dispatch.worker] = run
        if isinstance(event, Returned):
            del self.runs[event.request]

    def lose_cancelled(self, affected: Callable[[Run], bool]) -> None:
        """Aborted runs that a loss takes along, of which the controller says nothing."""
        for run in self.runs.values():
            if run.aborted and affected(run):
                run.lost = True

    def obey(self, command: ControlCommand) -> None:
        match command:
            case AdoptWorker():
                self._adopt(command)
            case Exposed():
                adopted = self.adopting.pop(Worker(command.degree, command.base))
                assert adopted.epoch == command.epoch
                assert not self._unacknowledged(command.epoch)
                self.exposed[command.worker] = adopted
            case Converting():
                self.converting[command.operation] = command
            case DrainWorker():
                assert self.exposed[command.worker].epoch == command.epoch
                assert command.worker not in self.draining
                self.draining[command.worker] = command
                self.drained.discard(command.worker)
            case Resume():
                assert self.exposed[command.worker].epoch == command.epoch
                del self.draining[command.worker]
            case Park():
                self._park(command)
            case Converted():
                self._convert(command)
            case Withdrawn():
                self._withdraw(command)
            case Replicate():
                self._replicate(command)
            case Reclaim():
                self._reclaim(command)
            case Placed():
                assert command.worker in self.exposed
                assert command.worker not in self.draining
                assert not self.clients[command.request].ends
                assert command.request not in self.runs
                self._fetch(command)
            case CancelTransfer():
                assert command.transfer in self.transfers
                assert command.transfer not in self.cancelled
                assert command.transfer not in self._awaited()
                self.cancelled.add(command.transfer)
            case Dispatch():
                self._dispatch(command)
            case Reject():
                client = self.clients[command.request]
                assert command.attempt == client.submit.attempt
                client.ends.append("rejected")
            case Abort():
                assert self.clients[command.request].ends == ["cancelled"]
                self.runs[command.request].aborted = True
            case Lost():
                run = self.runs[command.request]
                assert command.attempt == run.submit.attempt
                assert not run.lost
                run.lost = True

    def _adopt(self, command: AdoptWorker) -> None:
        worker = Worker(command.degree, command.base)
        self._take_epoch(command)
        ranks = worker.ranks
        assert all(self.pools[rank].up for rank in ranks)
        if any(worker.name in c.after for c in self.converting.values()):
            parks = [a for a in self.unacknowledged if isinstance(a, Parked)]
            assert not any(a.epoch == self.parked_at.get(a.rank) for a in parks if a.rank in ranks)
        self.adopting[worker] = command
        for rank in worker.ranks:
            self.unacknowledged.append(Adopted(rank, 1, command.epoch, worker.degree))

    def _park(self, command: Park) -> None:
        worker = Worker(command.degree, command.base)
        assert worker.name not in self.exposed
        if not self._unacknowledged(command.epoch):
            self._take_epoch(command)
        for rank in worker.ranks:
            self.parked_at[rank] = command.epoch
            self.unacknowledged.append(Parked(rank, 1, command.epoch))

    def _take_epoch(self, command: AdoptWorker | Park) -> None:
        assert command.term == 1
        assert command.epoch > self.last_epoch
        self.last_epoch = command.epoch

    def _unacknowledged(self, epoch: int) -> list[Adopted | Parked]:
        return [ack for ack in self.unacknowledged if ack.epoch == epoch]

    def _replicate(self, command: Replicate) -> None:
        """What is copied is there, and the destination has all before it."""
        source = self.owners(command.chain, command.source_home, command.source_ranks)
        to = self.owners(command.chain, command.destination_home, command.destination_ranks)
        assert command.transfer not in self.transfers
        assert all(block in self.pools[rank].held for block, rank in source)
        first = command.first_block
        assert all(block in self.pools[rank].held for block, rank in to[:first])
        assert to[first][0] not in self.pools[to[first][1]].held
        self.transfers[command.transfer] = command, self.now + command.deadline_s

    def _fetch(self, placed: Placed) -> None:
        """A copy that a request waits for is told with its placement, or was before."""
        self.fetching.pop(placed.request, None)
        if placed.transfer is not None:
            self.fetching[placed.request] = placed.worker, placed.transfer

    def _awaited(self) -> set[int]:
        """The copies that somebody waits for, at a worker that serves."""
        serving = self.exposed.keys() - self.draining.keys()
        return {
            number
            for request, (worker, number) in self.fetching.items()
            if worker in serving and not self.clients[request].ends
        }

    def _is_under_way(self, number: int) -> bool:
        under_way = number in self.transfers and number not in self.cancelled
        return under_way and self.now < self.transfers[number][1]

    def _reclaim(self, command: Reclaim) -> None:
        """Nothing that is used, copied, or followed by what is kept; children go first."""
        blocks = split(command.blocks)
        assert not self.in_use(command.home, ("admitted", "prefilling", "handing off")) & set(
            blocks
        )
        for transfer, deadline in self.transfers.values():
            if self.now < deadline and command.home in ends(transfer):
                assert not set(blocks) & set(split(transfer.chain))
        gone: set[bytes] = set()
        for block in blocks:
            name = block.rstrip(b"\0")
            behind = {b for b in self._held(command.home) if b.startswith(name) and b != block}
            assert {b for b in behind if len(b.rstrip(b"\0")) == len(name) + 1} <= gone
            gone.add(block)
        self.reclaims.append(command)

    def in_use(self, home: int, stages: tuple[str, ...]) -> set[bytes]:
        """Blocks of the chains of all that the home's ranks have to do with."""
        live = [r for r in self.runs.values() if home in self.home(r) and not r.lost]
        return {b for r in live if r.stage in stages for b in split(r.submit.chain)}

    def owners(self, chain: bytes, base: int, ranks: int) -> list[tuple[bytes, int]]:
        """Every block of a chain, and the rank of the span that it belongs to."""
        turn = rotation(chain, ranks)
        return [(block, owner(n, base, turn, ranks)) for n, block in enumerate(split(chain))]

    def _held(self, home: int) -> set[bytes]:
        pools = self.pools[home : home + self.settings.home_ranks]
        return set().union(*(pool.held for pool in pools))

    def _convert(self, command: Converted) -> None:
        """An operation is over. What the ranks still acknowledge of it is late."""
        del self.converting[command.operation]
        if command.outcome == "exposed":
            assert set(command.after) <= self.exposed.keys()
            return
        self.adopting = {w: c for w, c in self.adopting.items() if w.name not in command.after}

    def owed(self, worker: str, epoch: int) -> list[Run]:
        """What the worker's ranks, under this epoch, still have to do with."""
        runs = self.runs.values()
        here = [r for r in runs if (r.dispatch.worker, r.dispatch.epoch) == (worker, epoch)]
        return [run for run in here if run.stage != "decoding"]

    def _withdraw(self, command: Withdrawn) -> None:
        del self.exposed[command.worker]
        if self.draining.pop(command.worker, None) and "parked" in command.reason:
            assert command.worker in self.drained
            late = self.owed(command.worker, command.epoch)  # which the drained lead will not take
            assert all(run.lost and run.stage == "admitted" for run in late)
        self.lose_cancelled(
            lambda run: run.dispatch.worker == command.worker and run.stage != "decoding"
        )

    def _dispatch(self, dispatch: Dispatch) -> None:
        client = self.clients[dispatch.request]
        assert not client.ends
        assert dispatch.request not in self.runs
        assert dispatch.attempt == client.submit.attempt
        assert self.exposed[dispatch.worker].epoch == dispatch.epoch
        assert dispatch.worker not in self.draining
        worker, number = self.fetching.pop(dispatch.request, ("", 0))
        assert worker != dispatch.worker or not self._is_under_way(number)
        run = Run(dispatch, client.submit)
        self._check_prediction(run)
        self._check_decode_blocks(run)
        self._check_kept(run)
        refused = self.refused.pop(dispatch.worker, None)
        assert refused is None or self.has_room(refused)
        self.runs[dispatch.request] = run

    # --- what must hold

    def _check_prediction(self, run: Run) -> None:
        """The prefix is the longest of the worker's homes and spans, unless that is a short one."""
        degree, tokens = run.dispatch.degree, run.submit.input_tokens
        width = self.settings.home_ranks
        homes = Worker(degree, run.dispatch.base).homes(width)
        cached = {(home, width): self.cached_tokens(home, run.submit) for home in homes}
        chosen = run.dispatch.home_base, run.dispatch.home_ranks
        if chosen[1] > width:
            cached[chosen] = self.span_tokens(*chosen, run.submit)
        for ahead in self.owed(run.dispatch.worker, run.dispatch.epoch):
            span = ahead.dispatch.home_base, ahead.dispatch.home_ranks
            blocks = self._promised_blocks(ahead, run.submit)
            cached[span] = max(cached.get(span, 0), blocks * 10)
        prefix = run.cached_tokens = cached[chosen]
        blocks = self.settings.blocks(tokens)
        assert blocks <= chosen[1] * self.settings.kv_blocks
        fitting = [n for s, n in cached.items() if blocks <= s[1] * self.settings.kv_blocks]
        assert prefix == max(fitting) or max(fitting) * SMALL_PART < tokens
        predicted_s = PREFILL_TIME.predict_s(degree, tokens - prefix, prefix)
        assert abs(run.dispatch.predicted_s - predicted_s) < 1e-9

    def _promised_blocks(self, ahead: Run, submit: Submit) -> int:
        """Blocks that the request ahead will have computed."""
        produces = ahead.stage in ("admitted", "prefilling") and not (ahead.aborted or ahead.lost)
        if self.settings.policy == "paper" or not produces:
            return 0
        pairs = zip(split(ahead.submit.chain), split(submit.chain), strict=False)
        shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        return min(shared, (submit.input_tokens - 1) // 10)

    def _check_decode_blocks(self, run: Run) -> None:
        if run.submit.max_new_tokens <= 1:
            assert (run.dispatch.decode_rank, run.dispatch.decode_blocks) == (-1, 0)
            return
        total = run.submit.input_tokens + run.submit.max_new_tokens
        assert run.dispatch.decode_blocks == self.settings.blocks(total)
        assert run.dispatch.decode_rank in self.decode_up

    def check(self, view: dict[str, Any]) -> None:
        """``view`` is the controller's snapshot."""
        live = [run for run in self.runs.values() if not run.lost]
        self._check_workers(live, view["workers"])
        self._check_homes(live)
        for rank in self.decode_up:
            there = [run for run in live if run.dispatch.decode_rank == rank]
            taken = sum(run.dispatch.decode_blocks for run in there)
            assert taken <= self.settings.decode_kv_blocks
        assert all(r.dispatch.decode_rank in {-1, *self.decode_up} for r in live)

    def _check_workers(self, live: list[Run], views: list[dict[str, Any]]) -> None:
        in_use = [*self.adopting, *(Worker(c.degree, c.base) for c in self.exposed.values())]
        ranks = [rank for worker in in_use for rank in worker.ranks]
        assert len(ranks) == len(set(ranks))
        shown = [rank for view in views for rank in view["ranks"]]
        assert sorted(shown) == list(range(self.settings.ranks))
        for view in views:
            there = [run for run in live if run.dispatch.worker == view["name"]]
            unfinished = [run for run in there if run.stage in ("admitted", "prefilling")]
            predicted_s = sum(run.dispatch.predicted_s for run in unfinished)
            most = PAUSING_MAX if self.settings.does("pause") else 2
            assert len(unfinished) <= most
            assert sorted(view["running"]) == sorted(run.submit.request for run in unfinished)
            assert view["queue_s"] >= predicted_s - 1e-6
            queued = view["waiting"] or view["fetching"]
            assert queued or view["queue_s"] <= predicted_s + 1e-6
            assert (view["state"] in ("serving", "draining")) == (view["name"] in self.exposed)
            assert (view["state"] == "draining") == (view["name"] in self.draining)
            assert view["name"] in self.exposed or all(r.stage == "decoding" for r in there)
            assert view["state"] == "serving" or not queued

    def _check_kept(self, run: Run) -> None:
        """On other homes of the worker, that have what is cached."""
        dispatch = run.dispatch
        others = set(Worker(dispatch.degree, dispatch.base).homes(self.settings.home_ranks))
        assert set(dispatch.keep_homes) <= others - {dispatch.home_base}
        for home in dispatch.keep_homes:
            assert self.cached_tokens(home, run.submit) >= run.cached_tokens

    def _check_homes(self, live: list[Run]) -> None:
        for home in range(0, self.settings.ranks, self.settings.home_ranks):
            there = [r for r in live if home in self.home(r) or home in r.dispatch.keep_homes]
            owed = [r for r in there if r.stage != "decoding"]
            assert sum(self.fresh_share(run) for run in owed) <= self.settings.kv_blocks


def ends(copy: Replicate) -> set[int]:
    """The ranks that a copy reads and writes."""
    source = range(copy.source_home, copy.source_home + copy.source_ranks)
    to = range(copy.destination_home, copy.destination_home + copy.destination_ranks)
    return {*source, *to}


def split(chain: bytes) -> list[bytes]:
    return [chain[n : n + 16] for n in range(0, len(chain), 16)]
