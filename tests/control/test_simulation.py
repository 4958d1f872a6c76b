"""Random scripts against the whole controller; and broken controllers, which they must catch."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from cluster_books import split
from cluster_world import World

from vertumnusd.control import worker_queue
from vertumnusd.control.copies import Copies
from vertumnusd.control.decode_pools import DecodePools
from vertumnusd.control.dispatcher import Dispatcher
from vertumnusd.control.fetching import Fetching
from vertumnusd.control.fleet import Fleet
from vertumnusd.control.homes import Homes, Span
from vertumnusd.control.keeping import Keeping
from vertumnusd.control.ledger import Ledger
from vertumnusd.control.prefix_nodes import PrefixNodes
from vertumnusd.control.prefix_trie import PrefixTrie
from vertumnusd.control.reconfig import Operations
from vertumnusd.control.replication import Replication
from vertumnusd.control.scheduler import Scheduler
from vertumnusd.control.stage import Stage
from vertumnusd.control.worker_queue import WorkerQueue
from vertumnusd.messages import BlocksChanged

ACTIONS = 200

Patch = pytest.MonkeyPatch


def play(seed: int) -> None:
    world = World(seed)
    world.play(ACTIONS)
    world.drain()


@pytest.mark.parametrize("seed", range(1000))
def test_random_script(seed):
    play(seed)


def mutant(owner: type, name: str, broken: Callable[..., object]) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(owner, name, broken)


def nothing(*_: object) -> list[object]:
    return []


def _any_attempt(ledger, event):
    return ledger.requests.get(event.request)


def _no_time_of_queued(ledger, requests):
    for request in requests:
        ledger.unplaced.pop(request.name, None)


def _first_acknowledgement(fleet, event, honest=Fleet.adopted):
    standing = fleet.standings[fleet.worker_of(event.rank)]
    if event.epoch == standing.epoch:
        standing.adopted.update(fleet.worker_of(event.rank).ranks)
    return honest(fleet, event)


def _same_epoch(fleet, worker, honest=Fleet._adopt):
    commands = honest(fleet, worker)
    fleet.epoch -= len(commands)
    return commands


def _lost_queue(scheduler, now, requests, honest=Scheduler._place_all):
    return [] if now else honest(scheduler, now, requests)


def _retry_on_any_report(scheduler, report, honest=Scheduler.blocks_changed):
    missing = honest(scheduler, report)
    for queue in scheduler.ledger.queues.values():
        queue.blocked = None
    return missing


def _never_retry_on_reports(scheduler, report):
    missing = scheduler.matching.trie.apply(report)
    scheduler.ledger.homes.report(report)
    return missing


def _emptiest_home(dispatcher, worker, request, honest=Dispatcher._choose_span):
    span, cached = honest(dispatcher, worker, request)
    width = dispatcher._settings.home_ranks
    if span.ranks > width:
        return span, cached
    home = min(worker.homes(width), key=dispatcher._ledger.homes.fullness)
    return Span(home, width), dispatcher._matching.by_home(request, [home]).get(home, 0)


def _requeue_cancelled(scheduler, event):
    request = scheduler.ledger.current(event)
    if request is not None and request.stage is Stage.DISPATCHED:
        scheduler.ledger.take_back(request)
        return request
    return None


def _drop_queue(scheduler, now, workers, honest=Scheduler.drain):
    for worker in workers:
        scheduler.ledger.unbind(list(scheduler.ledger.queues[worker].waiting))
    return honest(scheduler, now, workers)


def _drain_nothing(scheduler, now, workers):
    scheduler.ledger.draining.update((w, scheduler.ledger.queues[w]) for w in workers)
    return []


def _drained_by_one(operations, operation, honest=Operations._is_drained):
    if operation.drained:
        operation.drained.update(operation.before)
    return honest(operations, operation)


def _parked_by_one(operations, now, event, honest=Operations.parked):
    for operation in operations.under_way.values():
        operation.parked.update(operation.ranks)
    return honest(operations, now, event)


def _roll_back_same_epoch(operations, now, operation, reason, honest=Operations._roll_back):
    fleet = operations._fleet
    epochs = {fleet.standings[worker].epoch for worker in operation.present}
    fleet.epoch = min(epochs) - 1
    return honest(operations, now, operation, reason)


def _replace_apart(fleet, before, after, *, at_once, honest=Fleet.replace):
    return honest(fleet, before, after, at_once=False)


def _publish_at_once(replication, now, kind, copy, honest=Replication._replicate):
    trie, path = replication._scheduler.matching.trie, split(copy.chain)
    for parent, block in itertools.pairwise([bytes(16), *path]):
        rank = copy.destination
        report = BlocksChanged(rank, trie.versions[rank] + 1, parent + block, b"", 0, 0, 0)
        trie.apply(report)
    return honest(replication, now, kind, copy)


def _overlook(ledger, queue):
    """Loads are right, but nobody looks at what waits."""
    if queue.worker in ledger.queues:
        ledger.loads.change(queue.worker, queue.load_ns)


def _go_on_at_once(fetching, honest=Fetching.settle):
    for request in {r for requests in fetching._waiting.values() for r in requests}:
        if request.stage is Stage.FETCHING:
            fetching._ledger.fetched(request)
    return honest(fetching)


def _wait_for_lost_copies(fetching, honest=Fetching.settle):
    under_way = {number for number in fetching._waiting if number in fetching._copies}
    return honest(fetching) if under_way == set(fetching._waiting) else []


def _only_the_last(fetching, request, number, honest=Fetching._waits):
    return request is fetching._waiting[number][-1] and honest(fetching, request, number)


def _keep_on_all(keeping, request, worker, span, cached_tokens):
    others = [home for home in worker.homes(keeping._home_ranks) if home != span.base]
    blocks = request.blocks - cached_tokens // keeping._block_tokens
    fitting = (home for home in others if keeping._homes.fits(home, blocks))
    return tuple(fitting) if span.ranks == keeping._home_ranks else ()


MUTANTS = {
    "overlook a queue in which something waits": mutant(Ledger, "_note", _overlook),
    "accept an old attempt": mutant(Ledger, "current", _any_attempt),
    "keep the time of a cancelled request": mutant(Ledger, "unbind", _no_time_of_queued),
    "keep the home of a request": mutant(Ledger, "release_home", nothing),
    "keep the decode blocks of a request": mutant(Ledger, "release_decode", nothing),
    "keep the time of a finished prefill": mutant(Scheduler, "prefill_done", nothing),
    "promise a home twice": mutant(Homes, "fits", lambda *_: True),
    "promise a decode rank twice": mutant(
        DecodePools, "choose", lambda pools, blocks: min(pools._free, default=None)
    ),
    "leave no one informed of a loss": mutant(Scheduler, "_lose", nothing),
    "drop the queue of a lost worker": mutant(Scheduler, "_place_all", _lost_queue),
    "keep the blocks of a lost rank": mutant(PrefixTrie, "drop_rank", nothing),
    "expose at the first acknowledgement": mutant(Fleet, "adopted", _first_acknowledgement),
    "give an epoch twice": mutant(Fleet, "_adopt", _same_epoch),
    "dispatch three": lambda patch: patch.setattr(worker_queue, "DISPATCHED_MAX", 3),
    "lose what the ranks refused": mutant(Scheduler, "room_missing", nothing),
    "retry a refusal at once": mutant(Scheduler, "blocks_changed", _retry_on_any_report),
    "never retry a refusal": mutant(Scheduler, "blocks_changed", _never_retry_on_reports),
    "queue a cancelled request again": mutant(Scheduler, "_take_back", _requeue_cancelled),
    "take a home without the prefix": mutant(Dispatcher, "_choose_span", _emptiest_home),
    "never turn the unplaced away": mutant(Scheduler, "tick", nothing),
    "drop the queue on drain": mutant(Scheduler, "drain", _drop_queue),
    "go on dispatching on drain": mutant(Scheduler, "drain", _drain_nothing),
    "park before all is drained": mutant(Scheduler, "owes_nothing", lambda *_: True),
    "park at the first answer": mutant(Operations, "_is_drained", _drained_by_one),
    "adopt with one rank not parked": mutant(Operations, "parked", _parked_by_one),
    "keep the epoch on a rollback": mutant(Operations, "_roll_back", _roll_back_same_epoch),
    "expose the halves one by one": mutant(Fleet, "replace", _replace_apart),
    "promise what was cancelled": mutant(Ledger, "withdraw_promise", nothing),
    "publish before the install": mutant(Replication, "_replicate", _publish_at_once),
    "reclaim what is in use": mutant(Replication, "_needed_at", lambda *_: set()),
    "reclaim what a kept block needs": mutant(PrefixNodes, "kept_behind", lambda *_: set()),
    "keep the room of a transfer": mutant(
        Copies, "ended", lambda copies, n: copies._transfers.pop(n, 0)
    ),
    "copy to a home that has no room": mutant(Homes, "fits", lambda *_: True),
    "wait for the transfers of a lost home": mutant(Copies, "lose", nothing),
    "dispatch before the prefix is there": mutant(Fetching, "settle", _go_on_at_once),
    "wait for a copy that is over": mutant(Fetching, "settle", _wait_for_lost_copies),
    "forget one of those that wait for a copy": mutant(Fetching, "_waits", _only_the_last),
    "redirect without those that wait for a copy": mutant(
        WorkerQueue, "queued", property(lambda queue: queue.waiting)
    ),
    "keep a chain without its prefix": mutant(Keeping, "homes", _keep_on_all),
    "never roll back": mutant(Operations, "_roll_back", nothing),
    "place nothing when a worker returns": mutant(
        Scheduler,
        "_open",
        lambda scheduler, _, queues: [scheduler.ledger.open(queue) for queue in queues] and [],
    ),
}


@pytest.mark.patches
@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_controller_is_caught(name, monkeypatch):
    MUTANTS[name](monkeypatch)
    assert any(is_caught(seed) for seed in range(150)), f"{name}: every script passed"


def is_caught(seed: int) -> bool:
    """Broken in any way: by a check of the world, or by a part that refuses to go on."""
    try:
        play(seed)
    except (AssertionError, KeyError, ValueError, IndexError):
        return True
    return False
