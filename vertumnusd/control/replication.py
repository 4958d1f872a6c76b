"""Algorithm 2 (section 3 of the method): copy prefixes that are wanted, delete those that are not.

At every scan, for every node z and degree C with r = replicas of z at C, which are the serving
workers of that degree with a home that holds the whole path to z:

    r = 0 and missed > θ_inter      inter-degree candidate, ranked by missed per copied block
    r > 0 and access > r·θ_intra    intra-degree candidate, by access / r, deepest first on ties
    r > 0 and access < r·θ_reclaim  reclaim candidate, by least access / r

A scan does not look at every node: only those whose statistics passed the threshold can be copied,
of which the highest are examined, and what is reclaimed is found among the nodes that were not
used for longest. A bounded number of each is done, then both statistics decay.

A copy is no replica as long as it is under way (``copies.py``), and what is deleted counts until
the ranks have reported that it is gone.

Never reclaimed: what a request at the home's worker needs, what a transfer reads or builds on, and
what a block kept behind it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nlargest, nsmallest
from typing import Any, NamedTuple

from vertumnusd.control.copies import FETCH, Copy
from vertumnusd.control.decaying import Decaying
from vertumnusd.control.errors import IllegalEvent
from vertumnusd.control.fleet import Fleet
from vertumnusd.control.holding import Holding
from vertumnusd.control.hot_prefixes import HotPrefixes, prefix_name
from vertumnusd.control.prefix_nodes import PrefixNodes, bits
from vertumnusd.control.reclaiming import reclaimable
from vertumnusd.control.scheduler import Scheduler
from vertumnusd.control.settings import Settings
from vertumnusd.control.stage import Stage
from vertumnusd.messages import HASH_BYTES, ControlCommand, Reclaim, ReclaimPrefix, Replicate

EXAMINED = 128  # nodes of each kind and degree, a scan: a scan must not hold up requests
PLANNED = 16  # of each kind, a scan: the candidates that rank first


class Candidate(NamedTuple):
    """A node, and the degree at which it is to have one replica more or less."""

    node: bytes
    degree: int
    holders: int  # homes with the whole path, at any degree: a bit for the base rank of each
    value: float  # missed of an inter-degree candidate, else access
    replicas: int


class Replication:
    """Scans begin with the seat, if replication is enabled."""

    def __init__(
        self, settings: Settings, fleet: Fleet, scheduler: Scheduler, holding: Holding
    ) -> None:
        self._settings = settings.replication
        self._home_ranks = settings.home_ranks
        self._home_blocks = settings.home_blocks
        self._fleet = fleet
        self._scheduler = scheduler
        self._copies = scheduler.copies
        self._nodes = PrefixNodes(scheduler.matching.trie, settings.home_ranks)
        self._statistics = scheduler.matching.statistics
        self._hot = HotPrefixes(settings, self._nodes, self._statistics, fleet)
        self._next_scan: float | None = None
        self._holding = holding

    def seat(self, now: float) -> None:
        if self._settings.enabled and self._next_scan is None:
            self._next_scan = now + self._settings.scan_s

    # --- time

    def next_deadline(self) -> float | None:
        return self._next_scan

    def tick(self, now: float) -> list[ControlCommand]:
        if self._next_scan is None or now < self._next_scan:
            return []
        self._next_scan = max(now, self._next_scan + self._settings.scan_s)
        commands = [] if self._holding.is_on(now) else self._scan(now)
        self._statistics.decay()
        return commands

    def snapshot(self, now: float) -> dict[str, Any]:
        return {"hot_prefixes": self._hot.show(now)}

    # --- the scan

    def _scan(self, now: float) -> list[ControlCommand]:
        settings, access, missed = self._settings, self._statistics.access, self._statistics.missed
        inter: list[Candidate] = []
        intra: list[Candidate] = []
        reclaim: list[Candidate] = []
        for degree in sorted({worker.degree for worker in self._fleet.serving()}):
            for c in self._candidates(degree, _highest(missed[degree])):
                if c.holders and not c.replicas:
                    inter.append(c)
            for c in self._candidates(degree, _highest(access[degree])):
                if c.replicas and c.value > c.replicas * settings.intra_accesses:
                    intra.append(c)
            for c in self._candidates(degree, access[degree].coldest(EXAMINED)):
                if c.replicas and c.value < c.replicas * settings.reclaim_accesses:
                    reclaim.append(c)
        return [
            *self._replicate_all(now, "inter", self._by_gain(inter)),
            *self._replicate_all(now, "intra", nsmallest(PLANNED, intra, key=self._by_use)),
            *self._reclaim_all(nsmallest(PLANNED, reclaim, key=_by_disuse)),
        ]

    def _candidates(self, degree: int, nodes: Iterable[tuple[float, bytes]]) -> Iterator[Candidate]:
        bases = sum(1 << homes[0] for homes in self._places(degree))
        for value, node in nodes:
            holders = self._nodes.holders(node)
            replicas = (self._by_base(holders, degree) & bases).bit_count()
            yield Candidate(node, degree, holders, value, replicas)

    def _by_base(self, holders: int, degree: int) -> int:
        """A bit at the base of each aligned set of ``degree`` ranks that has a holder."""
        folded = holders
        for home in range(self._home_ranks, degree, self._home_ranks):
            folded |= holders >> home
        return folded

    def _places(self, degree: int) -> list[range]:
        """The homes of each serving worker of a degree."""
        serving = self._fleet.serving()
        return [w.homes(self._home_ranks) for w in serving if w.degree == degree]

    def _by_gain(self, inter: list[Candidate]) -> list[Candidate]:
        """Most missed for each block that would have to be copied."""
        gains = {}
        for candidate in nlargest(PLANNED, inter, key=lambda candidate: candidate.value):
            copy = self._plan(candidate)
            if copy is not None and copy.blocks:
                gains[candidate] = candidate.value / copy.blocks
        return sorted(gains, key=lambda c: (-gains[c], -self._nodes.depth(c.node), c.node))

    def _by_use(self, candidate: Candidate) -> tuple[float, int, bytes]:
        use = candidate.value / candidate.replicas
        return -use, -self._nodes.depth(candidate.node), candidate.node

    # --- copies

    def _replicate_all(
        self, now: float, kind: str, candidates: Iterable[Candidate]
    ) -> list[ControlCommand]:
        """Begin the first few. What continues the path of a copy makes that one longer."""
        under_way = sum(transfer.kind != FETCH for transfer in self._copies)
        free = self._settings.max_transfers - under_way
        limit = min(free, self._settings.max_of_each)
        planned: list[tuple[int, Copy]] = []  # with the degree of each
        for candidate in candidates:
            copy, degree = self._plan(candidate), candidate.degree
            if copy is None or self._is_under_way(copy, degree):
                continue
            related = (n for n, (d, p) in enumerate(planned) if d == degree and _related(p, copy))
            index = next(related, None)
            if index is not None:
                planned[index] = degree, self._longer(planned[index][1], copy)
            elif len(planned) < limit:
                planned.append((degree, copy))
        fits = self._scheduler.ledger.homes.fits  # several may be planned to the same home
        return [
            self._replicate(now, kind, copy)
            for _, copy in planned
            if fits(copy.destination, copy.blocks)
        ]

    def _longer(self, copy: Copy, other: Copy) -> Copy:
        """To where the first one goes, as far as the longer one, if there is room."""
        if len(other.chain) <= len(copy.chain):
            return copy
        longer = Copy(other.chain, copy.first_block, other.source, copy.destination)
        fits = self._scheduler.ledger.homes.fits(longer.destination, longer.blocks)
        return longer if fits else copy

    def _replicate(self, now: float, kind: str, copy: Copy) -> Replicate:
        deadline_s = self._settings.transfer_deadline_s
        return self._copies.begin(now, self._fleet.term, kind, copy, deadline_s)

    def _plan(self, candidate: Candidate) -> Copy | None:
        """To the home with most of the path, room and little load; from one with little load."""
        chain = self._nodes.chain_to(candidate.node)
        there = self._scheduler.matching.trie.match(chain)
        homes = self._scheduler.ledger.homes
        total = len(chain) // HASH_BYTES
        places = [
            (-there.get(home, 0), self._load_s(home), homes.fullness(home), home)
            for of_worker in self._places(candidate.degree)
            if not any(candidate.holders >> home & 1 for home in of_worker)
            for home in of_worker
            if homes.fits(home, total - there.get(home, 0))
        ]
        sources = [home for home in bits(candidate.holders) if self._may_send(home, candidate)]
        if not places or not sources:
            return None
        source = min(sources, key=lambda home: (self._load_s(home), home))
        negative, _, _, destination = min(places)
        return Copy(chain, -negative, source, destination)

    def _may_send(self, home: int, candidate: Candidate) -> bool:
        """Any serving worker may for the first replica of a degree, then those of that degree."""
        worker = self._fleet.worker_of(home)
        if not self._fleet.serves(worker):
            return False
        return not candidate.replicas or worker.degree == candidate.degree

    def _is_under_way(self, copy: Copy, degree: int) -> bool:
        """Whether a copy of this path, or of a part of it, is on its way to the same degree."""
        for transfer in self._copies:
            other = transfer.copy
            to_degree = self._fleet.worker_of(other.destination).degree
            same_way = to_degree == degree or other.destination == copy.destination
            if same_way and _related(other, copy):
                return True
        return False

    def _load_s(self, home: int) -> float:
        return self._scheduler.ledger.load_s(self._fleet.worker_of(home))

    # --- deletions

    def named(self, start: bytes) -> list[bytes]:
        """Blocks that some home holds with all before them, and whose names begin like this."""
        return [block for block in self._nodes.named(start) if self._nodes.holders(block)]

    def reclaims(self, block: bytes) -> list[Reclaim]:
        """What each of its holders would be told to delete, asked for by hand."""
        return [self._reclaim_by_hand(block, home) for home in bits(self._nodes.holders(block))]

    def reclaim(self, order: ReclaimPrefix) -> list[ControlCommand]:
        """Raises IllegalEvent if the home does not hold it, or it is needed."""
        if not self._nodes.holders(order.block) >> order.home & 1:
            raise IllegalEvent(f"home {order.home} does not hold {prefix_name(order.block)}")
        command = self._reclaim_by_hand(order.block, order.home)
        if not command.blocks:
            name = prefix_name(order.block)
            raise IllegalEvent(f"a request or a copy at home {order.home} needs {name} now")
        return [command]

    def _reclaim_by_hand(self, block: bytes, home: int) -> Reclaim:
        needed = self._needed_at(home)
        gone = reclaimable(self._nodes, block, home, needed.__contains__)
        return Reclaim(self._fleet.term, home, b"".join(gone), self._versions(home))

    def _reclaim_all(self, candidates: Iterable[Candidate]) -> list[ControlCommand]:
        commands: list[ControlCommand] = []
        for candidate in candidates:
            if len(commands) >= self._settings.max_of_each:
                break
            home = self._fullest(candidate)
            blocks = b"" if home is None else self._free_blocks(candidate.node, home)
            if home is not None and blocks:
                commands.append(Reclaim(self._fleet.term, home, blocks, self._versions(home)))
        return commands

    def _versions(self, home: int) -> tuple[int, ...]:
        return tuple(self._scheduler.matching.trie.versions[home : home + self._home_ranks])

    def _fullest(self, candidate: Candidate) -> int | None:
        """The home under most pressure that has a copy, if it is under pressure."""
        homes = self._scheduler.ledger.homes
        pressure = self._settings.reclaim_above * self._home_blocks
        full = [
            (homes.fullness(home), home)
            for of_worker in self._places(candidate.degree)
            for home in of_worker
            if candidate.holders >> home & 1 and homes.fullness(home) > pressure
        ]
        return max(full)[1] if full else None

    def _free_blocks(self, node: bytes, home: int) -> bytes:
        """The blocks of the node that can go, children first; none if one behind it is kept."""
        needed = self._needed_at(home)
        chain = self._nodes.chain_to(node)
        gone: list[bytes] = []
        for end in range(
            len(chain), len(chain) - self._statistics.stride * HASH_BYTES, -HASH_BYTES
        ):
            block = chain[end - HASH_BYTES : end]
            if block in needed or not self._nodes.kept_behind(block, home) <= set(gone):
                break
            gone.append(block)
        return b"".join(gone)

    def _needed_at(self, home: int) -> set[bytes]:
        """Blocks of the chains of the worker's requests, and of the home's transfers."""
        worker = self._fleet.worker_of(home)
        stages = (Stage.FETCHING, Stage.WAITING, Stage.DISPATCHED, Stage.PREFILLED)
        requests = self._scheduler.ledger.requests.values()
        chains = [r.submit.chain for r in requests if r.worker == worker and r.stage in stages]
        chains += [each.copy.chain for each in self._copies if each.copy.touches(home)]
        return {
            chain[at : at + HASH_BYTES]
            for chain in chains
            for at in range(0, len(chain), HASH_BYTES)
        }


def _related(one: Copy, other: Copy) -> bool:
    """Whether the path of one is the beginning of the other's."""
    return one.chain.startswith(other.chain) or other.chain.startswith(one.chain)


def _by_disuse(candidate: Candidate) -> tuple[float, bytes]:
    return candidate.value / candidate.replicas, candidate.node


def _highest(statistic: Decaying) -> list[tuple[float, bytes]]:
    return nlargest(EXAMINED, statistic.high())
