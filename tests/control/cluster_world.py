"""A made-up cluster: drives a Controller with random events and obeys what it commands.

Ranks die, restart, refuse and evict; clients leave; events are repeated and come late.
``cluster_books.py`` holds the facts and the checks. ``drain`` brings everything back up, lets
everything end, and expects the base line.
"""

from __future__ import annotations

import json
import random

import pytest
from cluster_books import Books, Client, Pool, Run, ends, split
from scenario import PREFILL_TIME, blocks, settings

from vertumnusd.control.controller import Controller, IllegalEvent, Settings
from vertumnusd.control.fleet import Worker, lattice, parts
from vertumnusd.control.settings import FetchSettings, ReconfigurationSettings, ReplicationSettings
from vertumnusd.messages import (
    Abort,
    BlocksChanged,
    Cancel,
    ControlCommand,
    ControlEvent,
    Done,
    Drained,
    HandedOff,
    Hold,
    Merge,
    PrefillDone,
    RankDown,
    RankUp,
    ReclaimPrefix,
    Reject,
    Replicated,
    Returned,
    RoomMissing,
    Seated,
    Split,
    Submit,
    TransferFailed,
)

GEOMETRIES = (
    {"cp_degrees": (1,), "composition": "3CP1", "ranks": 3, "home_ranks": 1},
    {"cp_degrees": (1, 2), "composition": "1CP2/2CP1", "ranks": 4, "home_ranks": 1},
    {"cp_degrees": (1, 2, 4), "composition": "1CP4/1CP2/2CP1", "ranks": 8, "home_ranks": 1},
    {"cp_degrees": (2, 4), "composition": "1CP4/2CP2", "ranks": 8, "home_ranks": 2},
    {"cp_degrees": (2, 4), "composition": "1CP4/1CP2", "ranks": 6, "home_ranks": 2},
    {"cp_degrees": (2,), "composition": "1CP2", "ranks": 2, "home_ranks": 1},
)
PATIENCE = 1000  # rounds in which everything must have ended


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.settings = self._settings()
        self.controller = Controller(self.settings, PREFILL_TIME)
        self.books = Books(self.settings)
        self.now = 0.0
        self.incarnations = 0
        self.past: list[PrefillDone | HandedOff | Done | RoomMissing | Returned] = []
        self.happen(Seated(1))
        self.calm = self.random.random() < 0.5  # then everything is up, and little fails
        while self.calm and self.books.down():
            self._come_up(self.books.down()[0])

    def _settings(self) -> Settings:
        choose = self.random.choice
        split_above = choose((0.1, 0.9))
        return settings(
            **choose(GEOMETRIES),
            beta=choose((1.0, 1.5)),
            lambda_=choose((0.0, 0.5)),
            kv_blocks=12,
            decode_ranks=choose((1, 2)),
            decode_kv_blocks=16,
            max_queue_tokens=choose((300, 2000)),
            max_queue_s=choose((3.0, 30.0)),
            unplaced_wait_s=5.0,
            policy=choose(("paper", "ours", "ours")),
            replication=ReplicationSettings(
                enabled=choose((True, False)),
                scan_s=2.0,
                inter_missed_s=0.05,
                intra_accesses=0.6,
                reclaim_accesses=0.4,
                reclaim_above=0.1,
                transfer_deadline_s=choose((4.0, 40.0)),
            ),
            fetch=FetchSettings(
                token_s=choose((0.0, 1e-4, 1e-4, 1e-4)),
                latency_s=choose((0.0, 0.05)),
                max_running=choose((1, 4)),
                deadline_s=choose((1.0, 40.0)),
            ),
            reconfiguration=ReconfigurationSettings(
                automatic=choose((True, False)),
                window_s=4.0,
                split_above=split_above,
                merge_below=split_above / 2,
                long_tokens=100,
                long_shift=0.2,
                hold_windows=1,
                min_requests=3,
                confidence=1e-9,
                dwell_s=choose((0.0, 8.0)),
                drain_deadline_s=choose((4.0, 40.0)),
                switch_deadline_s=choose((2.0, 20.0)),
            ),
        )

    def play(self, actions: int) -> None:
        kinds = (
            *[self.submit] * 6,
            *[self.submit_again] * 2,
            *[self.progress] * 12,
            *[self.acknowledge] * 8,
            *[self.rank_up, self.finish_drain] * 4,
            *[self.pass_time, self.convert, self.transfer, self.delete] * 3,
            *[self.cancel, self.foreign_pin, self.late_event] * 2,
            *[self.kill, self.restart],
        )
        for _ in range(actions):
            act = self.random.choice(kinds)
            if not self.calm or act not in (self.kill, self.restart) or self.random.random() < 0.1:
                act()

    def drain(self) -> None:
        for rank, pool in enumerate(self.books.pools):
            pool.pins.pop("", None)
            self.report(rank)
        books = self.books
        for _ in range(PATIENCE):
            self.rank_up()
            self.acknowledge()
            self.finish_drain()
            self.progress()
            self.transfer()
            busy = books.waiting() or books.runs or books.unacknowledged or books.converting
            if not (busy or books.down() or books.transfers):
                break
            if books.waiting() and all(map(books.too_large, books.waiting())):
                self.pass_time()
        self._check_base_line()

    def _check_base_line(self) -> None:
        assert not self.books.runs
        for client in self.books.clients.values():
            assert len(client.ends) == 1, client
        assert self.controller.idle()
        self.happen(Hold(0.0))
        periodic = self.settings.reconfiguration.automatic or self.settings.replication.enabled
        assert periodic or self.controller.next_deadline() is None
        view = json.loads(json.dumps(self.controller.snapshot(self.now)))
        assert all(worker["queue_s"] == 0 for worker in view["workers"])
        assert all(home["reserved_blocks"] == 0 for home in view["homes"])
        assert all(pool["free_blocks"] == pool["kv_blocks"] for pool in view["decode"])
        totals = view["totals"]
        ended = sum(totals[outcome] for outcome in ("rejected", "cancelled", "lost", "done"))
        assert totals["submitted"] == ended

    # --- things that happen

    def submit(self) -> None:
        choose = self.random.choice
        tokens = choose((1, 9, 10, 25, 50, 80, 119, 120, 130))
        path = "".join(self.random.choices("ab", k=3)).ljust(tokens // 10, "c")[: tokens // 10]
        self._submit(tokens, b"".join(blocks(path)), choose((0, 1, 2, 20, 60)))

    def submit_again(self) -> None:
        """Several want what one wanted before."""
        if self.books.clients:
            before = self.random.choice(list(self.books.clients.values())).submit
            for _ in range(self.random.choice((2, 4))):
                self._submit(before.input_tokens, before.chain, before.max_new_tokens)

    def _submit(self, tokens: int, chain: bytes, max_new_tokens: int) -> None:
        name = f"r{len(self.books.clients)}"
        submit = Submit(name, 0, tokens, chain, max_new_tokens)
        self.books.clients[name] = Client(submit)
        self.happen(submit)

    def cancel(self) -> None:
        if not self.books.waiting():
            return
        client = self.random.choice(self.books.waiting())
        client.ends.append("cancelled")
        run = self.books.runs.get(client.submit.request)
        dispatched = run is not None and not run.lost
        commands = self.happen(Cancel(client.submit.request))
        assert sum(isinstance(command, Abort) for command in commands) == dispatched

    def progress(self) -> None:
        """One run makes its next step."""
        if not self.books.runs:
            return
        run = self.random.choice(list(self.books.runs.values()))
        if run.lost:
            self._wind_down(run)
        elif run.aborted and self.random.random() < 0.5:
            self._end_aborted(run)
        elif run.stage == "admitted" and self._may_return(run):
            submit = run.submit
            self.happen(Returned(submit.request, submit.attempt, run.dispatch.worker))
        elif run.stage == "admitted":
            self._start(run)
        elif run.stage == "prefilling":
            self._finish_prefill(run)
        elif run.stage == "handing off":
            self._hand_off(run)
        else:
            self._end(run)

    def _may_return(self, run: Run) -> bool:
        """A lead that has said it is drained takes nothing that comes late."""
        worker = run.dispatch.worker
        draining = worker in self.books.draining
        return draining and (worker in self.books.drained or self.random.random() < 0.5)

    def convert(self) -> None:
        """An operator asks for some split or merge, possible or not."""
        worker = self.random.choice(lattice(self.settings.cp_degrees, self.settings.ranks))
        smaller = parts(worker, self.settings.cp_degrees)
        for event, before in ((Split, [worker]), (Merge, smaller)):
            if smaller and all(self._serves(each) for each in before):
                self.happen(event(worker.degree, worker.base))
                return
            with pytest.raises(IllegalEvent):
                self.controller.step(self.now, event(worker.degree, worker.base))

    def _serves(self, worker: Worker) -> bool:
        return worker.name in self.books.exposed.keys() - self.books.draining.keys()

    def finish_drain(self) -> None:
        """The lead of a draining worker owes nothing any more, and says so; perhaps once more.

        What was dispatched to it may still be on its way.
        """
        books = self.books
        ready = [
            drain
            for drain in books.draining.values()
            if all(run.stage == "admitted" for run in books.owed(drain.worker, drain.epoch))
        ]
        if ready:
            drain = self.random.choice(ready)
            books.drained.add(drain.worker)
            self.happen(Drained(1, drain.operation, drain.degree, drain.base))

    def transfer(self) -> None:
        """A transfer ends: everything is installed and reported, or nothing of it ever will be."""
        books = self.books
        if not books.transfers:
            return
        number = self.random.choice(sorted(books.transfers))
        command, deadline = books.transfers.pop(number)
        cancelled = number in books.cancelled and self.random.random() < 0.7  # or it was too late
        if cancelled or self.now > deadline or self.random.random() < 0.2:
            self.happen(TransferFailed(number, "no room"))
            return
        destination = command.destination_home, command.destination_ranks
        for block, rank in books.owners(command.chain, *destination)[command.first_block :]:
            if block not in books.pools[rank].held:
                books.pools[rank].held.add(block)
                self.report(rank, stored=block)
        self.happen(Replicated(number))

    def delete(self) -> None:
        """The ranks of a home delete what they were told to, but for what is pinned by now."""
        if not self.books.reclaims:
            return
        command = self.books.reclaims.pop(0)
        pinned = self.books.in_use(command.home, ("prefilling", "handing off"))
        for block in split(command.blocks):
            for rank in range(command.home, command.home + self.settings.home_ranks):
                if block in self.books.pools[rank].held - pinned:
                    self.books.pools[rank].held.discard(block)
                    self.report(rank, evicted=block)

    def kill(self) -> None:
        """A rank dies, perhaps with others of its kind."""
        if not self.books.up():
            return
        rank = self.random.choice(self.books.up())
        kind = self._kind(rank)
        others = [other for other in self.books.up() if other != rank and self._kind(other) == kind]
        also = self.random.sample(others, self.random.choice((0, min(1, len(others)), len(others))))
        for dead in (rank, *also):
            self._die(dead)
        self.happen(RankDown(rank, kind, "killed", tuple(also)))

    def restart(self) -> None:
        """A rank comes back before its loss was told."""
        if self.books.up():
            rank = self.random.choice(self.books.up())
            self._die(rank)
            self._come_up(rank)

    def rank_up(self) -> None:
        if self.books.down():
            self._come_up(self.random.choice(self.books.down()))

    def acknowledge(self) -> None:
        waiting = self.books.unacknowledged
        if waiting:
            self.happen(waiting.pop(self.random.randrange(len(waiting))))

    def pass_time(self) -> None:
        self.now += self.random.choice((0.1, 2.0))
        deadline = self.controller.next_deadline()
        self.books.now = self.now
        commands = self.controller.tick(self.now)
        due = deadline is not None and deadline <= self.now
        assert due or not commands
        looks = self.settings.reconfiguration.automatic and self.settings.policy == "ours"
        silent = looks or self.settings.replication.enabled or self.settings.fetch.token_s
        assert commands or not due or silent
        if commands:
            self.books.refused.clear()
        for command in commands:
            self.books.obey(command)
        self.books.check(self.controller.snapshot(self.now))
        if self.random.random() < 0.1:
            self.happen(Hold(self.random.choice((0.0, 10.0))))
        if self.random.random() < 0.1:
            self._reclaim_by_hand()

    def _reclaim_by_hand(self) -> None:
        """Any block that is held, wherever something of it can go."""
        held = list(self.controller.reclaims(b"").items())
        block, reclaims = self.random.choice(held) if held else (b"", [])
        for each in reclaims:
            if each.blocks:
                self.happen(ReclaimPrefix(block, each.home))

    def foreign_pin(self) -> None:
        """Something the controller does not know of takes, or gives back, a part of a pool."""
        rank = self.random.randrange(len(self.books.pools))
        self.books.pools[rank].pins[""] = self.random.choice((0, 4, 12))
        self.report(rank)

    def late_event(self) -> None:
        """Something about a request or an attempt that is over arrives once more."""
        if self.past:
            event = self.random.choice(self.past)
            client = self.books.clients[event.request]
            over = bool(client.ends) and event.request not in self.books.runs
            if over or client.submit.attempt > event.attempt:
                self._expect_nothing(event)

    # --- how ranks live and die

    def _kind(self, rank: int) -> str:
        return "prefill" if rank < self.settings.ranks else "decode"

    def _die(self, rank: int) -> None:
        books = self.books
        if self._kind(rank) == "decode":
            books.decode_up.discard(rank)
            books.lose_cancelled(lambda run: run.dispatch.decode_rank == rank)
            return
        books.pools[rank] = Pool()
        home = rank - rank % self.settings.home_ranks
        books.transfers = {
            number: (command, deadline)
            for number, (command, deadline) in books.transfers.items()
            if home not in ends(command)
        }
        books.reclaims = [command for command in books.reclaims if command.home != home]
        books.unacknowledged = [ack for ack in books.unacknowledged if ack.rank != rank]
        books.adopting = {w: c for w, c in books.adopting.items() if rank not in w.ranks}

    def _come_up(self, rank: int) -> None:
        self.incarnations += 1
        if self._kind(rank) == "decode":
            self.books.decode_up.add(rank)
        else:
            self.books.pools[rank] = Pool(up=True)
        self.happen(RankUp(rank, self._kind(rank), self.incarnations))

    def report(self, rank: int, stored: bytes = b"", evicted: bytes = b"") -> None:
        pool = self.books.pools[rank]
        if pool.up:
            pool.version += 1
            parent = stored.rstrip(b"\0")[:-1].ljust(16, b"\0")
            pair = parent + stored if stored else b""
            pinned = sum(pool.pins.values())
            self.happen(BlocksChanged(rank, pool.version, pair, evicted, len(pool.held), pinned, 0))

    # --- how ranks carry out a run

    def _start(self, run: Run) -> None:
        """Reserve; if a rank of the home refuses, those that had room let go again."""
        request, share = run.submit.request, self.books.share(run)
        starts = self.books.has_room(run)
        pinned = [rank for rank in self.books.home(run) if self.books.room(rank) >= share]
        for rank in pinned:
            self.books.pools[rank].pins[request] = share
            self.report(rank)
        if starts:
            run.stage = "prefilling"
            return
        self.happen(RoomMissing(request, run.submit.attempt, run.dispatch.worker))
        self._unpin(run)

    def _finish_prefill(self, run: Run) -> None:
        """Publish most of the chain's blocks, and evict some others."""
        for index, block in enumerate(split(run.submit.chain)):
            rank = self.books.home(run)[(index + block[0]) % run.dispatch.home_ranks]
            held = self.books.pools[rank].held
            if self.random.random() < 0.9 and block not in held:
                held.add(block)
                self.report(rank, stored=block)
            self._keep(run, index, block)
            if self.random.random() < 0.1 and held:
                evicted = self.random.choice(sorted(held))
                held.discard(evicted)
                self.report(rank, evicted=evicted)
        run.stage = "handing off"
        self.happen(PrefillDone(run.submit.request, run.submit.attempt, 0, 1.0))

    def _keep(self, run: Run, index: int, block: bytes) -> None:
        """On the further homes too, where their ranks had room."""
        for home in run.dispatch.keep_homes:
            rank = home + (index + block[0]) % self.settings.home_ranks
            if block not in self.books.pools[rank].held:
                self.books.pools[rank].held.add(block)
                self.report(rank, stored=block)

    def _hand_off(self, run: Run) -> None:
        self._unpin(run)
        run.stage = "decoding"
        self.happen(HandedOff(run.submit.request, run.submit.attempt))

    def _end_aborted(self, run: Run) -> None:
        """An aborted run ends from any stage, and need not say which."""
        if self.random.random() < 0.5:
            self._hand_off(run)
        self._unpin(run)
        self._end(run)

    def _end(self, run: Run) -> None:
        del self.books.runs[run.submit.request]
        if not run.aborted:
            self.books.clients[run.submit.request].ends.append("done")
        self.happen(Done(run.submit.request, run.submit.attempt))

    def _wind_down(self, run: Run) -> None:
        """What the controller has forgotten ends at the ranks too; then it is submitted again."""
        old = run.submit
        self._unpin(run)
        del self.books.runs[old.request]
        self._expect_nothing(PrefillDone(old.request, old.attempt, 0, 1.0))
        self._expect_nothing(HandedOff(old.request, old.attempt))
        client = self.books.clients[old.request]
        if not client.ends:
            client.submit = Submit(
                *(old.request, old.attempt + 1, old.input_tokens, old.chain, old.max_new_tokens)
            )
            self.happen(client.submit)

    def _unpin(self, run: Run) -> None:
        for rank in self.books.home(run):
            if self.books.pools[rank].pins.pop(run.submit.request, 0):
                self.report(rank)

    # --- one event, and what comes of it

    def happen(self, event: ControlEvent) -> list[ControlCommand]:
        self.books.expect(event)
        commands = self.controller.step(self.now, event)
        for command in commands:
            self.books.obey(command)
        self.books.check(self.controller.snapshot(self.now))
        if isinstance(event, PrefillDone | HandedOff | Done | RoomMissing | Returned):
            self.past.append(event)
        rejected = any(isinstance(command, Reject) for command in commands)
        goes_again = isinstance(event, Split | Merge | ReclaimPrefix)
        if self.random.random() < 0.1 and not (rejected or goes_again):
            self._expect_nothing(event)
        return commands

    def _expect_nothing(self, event: ControlEvent) -> None:
        """The event is repeated or late."""
        before = self.controller.snapshot(self.now)
        assert self.controller.step(self.now, event) == [], event
        assert self.controller.snapshot(self.now) == before, event
