"""Prefill rank processes: right answers at every geometry, fences, and nothing left behind."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from driver import GREEDY, Host, Run, Shape, Worker, chain_of, host, parts_of
from oracle import Oracle
from peer import Peer

from vertumnusd.messages import (
    HASH_BYTES,
    Adopt,
    Adopted,
    Begin,
    BlocksChanged,
    Discard,
    Park,
    Parked,
    Refused,
    Release,
    Reserved,
    ReserveFailed,
    Step,
    StepDone,
    StepFailed,
)

pytestmark = pytest.mark.ranks

KV_BLOCKS = 32
DICE = random.Random(0)


@pytest.fixture(scope="module")
def single_homes(checkpoint: Path) -> Iterator[Host]:
    """Two ranks that are a home each."""
    with host(checkpoint, Shape(kv_blocks=KV_BLOCKS)) as running:
        yield running


@pytest.fixture(scope="module")
def double_home(checkpoint: Path) -> Iterator[Host]:
    """Two ranks that are one home."""
    with host(checkpoint, Shape(kv_blocks=KV_BLOCKS, home_ranks=2)) as running:
        yield running


@pytest.fixture(params=["CP1", "CP2", "CP2, second home", "CP2, double home"])
def place(request: pytest.FixtureRequest) -> tuple[Worker, int]:
    """A worker and the home to use in it."""
    name = "double_home" if "double" in request.param else "single_homes"
    running: Host = request.getfixturevalue(name)
    degree = 1 if request.param == "CP1" else 2
    return running.worker(degree), 1 if "second" in request.param else 0


@pytest.fixture
def pair(single_homes: Host) -> Worker:
    return single_homes.worker(2)


def prompt(length: int) -> list[int]:
    """Tokens that no other test has left in a cache."""
    return DICE.choices(range(256), k=length)


def finish(run: Run, worker: Worker) -> None:
    """Release, and check that the home is idle: nothing pinned, nothing lost."""
    for state in worker.release(run):
        assert state.pinned_blocks == 0
        assert state.cached_blocks + state.free_blocks == KV_BLOCKS


def failure(peer: Peer) -> StepFailed:
    """What a rank says of a step whose one request failed; it is through with the step then."""
    failed = peer.receive(StepFailed)
    done = peer.receive(StepDone)
    assert (done.seq, done.drawn) == (failed.seq, {})
    return failed


def answer(worker: Worker, run: Run, new_tokens: int) -> list[int]:
    blocks = run.blocks + new_tokens  # ample
    tokens = worker.host.generate(run, blocks, new_tokens)
    worker.host.close(run.request)
    return tokens


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 33])
@pytest.mark.parametrize("layers_per_step", [1, 3, 4])
def test_the_answer_is_the_oracles(
    place: tuple[Worker, int], oracle: Oracle, length: int, layers_per_step: int
) -> None:
    worker, home_base = place
    tokens = prompt(length)
    run = worker.prefill(tokens, home_base=home_base, layers_per_step=layers_per_step)
    assert answer(worker, run, 5) == oracle(tokens, 6)
    finish(run, worker)


def test_a_cached_prefix_is_used_and_gives_the_same_answer(
    place: tuple[Worker, int], oracle: Oracle
) -> None:
    worker, home_base = place
    shared = prompt(21)
    finish(worker.prefill(shared, home_base=home_base), worker)
    tokens = shared + prompt(14)
    run = worker.prefill(tokens, home_base=home_base)
    assert run.cached_tokens == 20
    assert answer(worker, run, 5) == oracle(tokens, 6)
    finish(run, worker)


def test_a_fully_cached_prompt_still_computes_its_last_block(
    place: tuple[Worker, int], oracle: Oracle
) -> None:
    worker, home_base = place
    tokens = prompt(16)
    finish(worker.prefill(tokens, home_base=home_base), worker)
    run = worker.prefill(tokens, home_base=home_base)
    assert run.cached_tokens == 12
    assert answer(worker, run, 5) == oracle(tokens, 6)
    finish(run, worker)


def test_what_one_degree_cached_serves_another(single_homes: Host, oracle: Oracle) -> None:
    tokens = prompt(30)
    pair = single_homes.worker(2)
    finish(pair.prefill(tokens, home_base=1), pair)
    alone = single_homes.worker(1, base=1)
    run = alone.prefill(tokens)
    assert run.cached_tokens == 28
    assert answer(alone, run, 5) == oracle(tokens, 6)
    finish(run, alone)


@pytest.mark.parametrize("degrees", [(2, 1, 2), (1, 2, 1)])
def test_no_byte_of_kv_is_written_when_workers_split_and_merge(
    single_homes: Host, degrees: tuple[int, ...]
) -> None:
    """Whatever the ranks hold, of any request, is where it was; and it is used from there."""
    tokens = prompt(45)
    first = single_homes.worker(degrees[0], base=0)
    finish(first.prefill(tokens), first)
    pools = [single_homes.pool(rank) for rank in (0, 1)]
    before = [[kv_2NTHD.clone() for kv_2NTHD in pool.kv_2NTHD] for pool in pools]
    assert any(kv_2NTHD.any() for kv_2NTHD in before[0])
    for degree in degrees[1:]:
        workers = [single_homes.worker(degree, base) for base in range(0, 2, degree)]
    for pool, layers in zip(pools, before, strict=True):
        assert all(map(torch.equal, pool.kv_2NTHD, layers))
    run = workers[0].prefill(tokens)
    assert run.cached_tokens == 44
    finish(run, workers[0])


def test_a_chain_over_all_homes_of_a_worker_is_found_there(
    single_homes: Host, oracle: Oracle
) -> None:
    """It is more than one pool could hold, and a hit; one of its ranks alone has no part of it."""
    pair, tokens = single_homes.worker(2), prompt(4 * (KV_BLOCKS + 8))
    finish(pair.prefill(tokens, home_ranks=2), pair)
    run = pair.prefill(tokens, home_ranks=2)
    assert run.cached_tokens == len(tokens) - 4
    assert answer(pair, run, 3) == oracle(tokens, 4)
    finish(run, pair)
    alone = single_homes.worker(1)
    run = alone.prefill(tokens[:33])
    assert run.cached_tokens <= 4
    assert run.first_token == oracle(run.tokens, 1)[0]
    finish(run, alone)


def test_eviction_under_pressure_keeps_answers_right(
    place: tuple[Worker, int], oracle: Oracle
) -> None:
    worker, home_base = place
    evicted = 0
    prompts = [prompt(50) for _ in range(5)]
    for tokens in prompts + prompts[:3]:
        run = worker.prefill(tokens, home_base=home_base)
        evicted += sum(len(m.evicted) for p in worker.peers for m in p.unread(BlocksChanged))
        assert run.first_token == oracle(tokens, 1)[0]
        finish(run, worker)
    assert evicted > 0


def test_stored_blocks_are_reported_with_their_parents(double_home: Host) -> None:
    worker = double_home.worker(2)
    tokens = prompt(19)
    for peer in worker.peers:
        peer.forget()
    run = worker.prefill(tokens)
    chain = bytes(HASH_BYTES) + chain_of(tokens, 4)
    pairs = {chain[i : i + 2 * HASH_BYTES] for i in range(0, 4 * HASH_BYTES, HASH_BYTES)}
    stored = [m.stored for p in worker.peers for m in p.unread(BlocksChanged) if m.stored]
    assert sorted(map(len, stored)) == [4 * HASH_BYTES, 4 * HASH_BYTES]
    assert {s[i : i + 32] for s in stored for i in range(0, len(s), 32)} == pairs
    finish(run, worker)


def test_versions_rise_by_one(pair: Worker) -> None:
    peer = pair.peers[0]
    peer.forget()
    first = pair.release(pair.prefill(prompt(9)))[0]
    run = pair.prefill(prompt(9))
    versions = [m.version for m in peer.unread(BlocksChanged)]
    assert versions == [first.version + 1, first.version + 2]  # reserved, published
    finish(run, pair)


def test_what_is_not_kept_is_not_cached(pair: Worker) -> None:
    tokens = prompt(12)
    finish(pair.prefill(tokens, keep=False), pair)
    run = pair.reserve(tokens)
    assert run.cached_tokens == 0
    finish(run, pair)


def test_a_full_pool_refuses_and_pins_nothing(single_homes: Host) -> None:
    worker = single_homes.worker(1)
    run = worker.reserve(prompt(80))
    peer = worker.peers[0]
    peer.send(worker.reservation("too big", prompt(60), True, 0))
    failed = peer.receive(ReserveFailed)
    assert (failed.request, failed.needed_blocks, failed.free_blocks) == ("too big", 15, 12)
    finish(run, worker)


def test_a_repeated_reserve_is_ignored(pair: Worker) -> None:
    run = pair.reserve(prompt(9))
    peer = pair.peers[0]
    peer.send(pair.reservation(run.request, prompt(9), True, 0))
    other = pair.reserve(prompt(5))  # its answer comes after what the repeat gave
    assert not peer.unread(Reserved)
    pair.release(other)
    finish(run, pair)


def test_requests_take_turns_between_layers(place: tuple[Worker, int], oracle: Oracle) -> None:
    worker, home_base = place
    long, short = prompt(40), prompt(6)
    paused = worker.reserve(long, home_base=home_base)
    worker.begin(paused)
    worker.step(paused, 0, 1)
    finished = worker.prefill(short, home_base=home_base)
    worker.step(paused, 1, 4)
    assert finished.first_token == oracle(short, 1)[0]
    assert answer(worker, paused, 5) == oracle(long, 6)
    worker.release(finished)
    finish(paused, worker)


def test_a_cancelled_prefill_leaves_nothing(place: tuple[Worker, int]) -> None:
    worker, home_base = place
    tokens = prompt(22)
    run = worker.reserve(tokens, home_base=home_base)
    worker.begin(run)
    worker.step(run, 0, 2)
    worker.send(Discard(worker.term, worker.epoch, run.request))
    finish(run, worker)
    worker.send_step([run], 2, 4)
    for peer in worker.peers:
        assert "not known" in failure(peer).reason  # hidden states are gone
    again = worker.reserve(tokens, home_base=home_base)
    assert again.cached_tokens == 0
    finish(again, worker)


def test_a_discard_takes_published_blocks_back(pair: Worker) -> None:
    tokens = prompt(13)
    run = pair.prefill(tokens)
    peer = pair.peers[0]
    peer.forget()
    pair.send(Discard(pair.term, pair.epoch, run.request))
    assert len(peer.receive(BlocksChanged).evicted) == 3 * HASH_BYTES
    finish(run, pair)
    again = pair.prefill(tokens)
    assert again.cached_tokens == 0
    finish(again, pair)


def test_a_step_that_fails_on_one_rank_leaves_nothing_cached(pair: Worker, oracle: Oracle) -> None:
    tokens = prompt(13)
    run = pair.reserve(tokens)
    healthy, failing = pair.peers
    healthy.send(pair.beginning(run, GREEDY))  # the other rank does not know the request
    pair.send_step([run], 0, 4)
    assert failure(failing).request == run.request
    healthy.receive(StepDone)  # computed with K and V that never came, and published
    healthy.forget()
    pair.send(Discard(pair.term, pair.epoch, run.request))
    assert len(healthy.receive(BlocksChanged).evicted) == 3 * HASH_BYTES
    finish(run, pair)
    again = pair.prefill(tokens)
    assert (again.cached_tokens, again.first_token) == (0, oracle(tokens, 1)[0])
    finish(again, pair)


def test_a_failing_request_leaves_the_others_alone(pair: Worker, oracle: Oracle) -> None:
    tokens = prompt(17)
    run = pair.reserve(tokens)
    pair.begin(run)
    pair.step(run, 0, 2)
    too_long = Run("long", prompt(600), 150, 0, 1, 0, 0, array("I", range(150)).tobytes())
    pair.begin(too_long)
    for first in (0, 2):  # the second failure still tells the first reason
        pair.send_step([too_long], first, first + 2)
        for peer in pair.peers:
            assert "600 uncached tokens" in failure(peer).reason
    pair.step(run, 2, 4)
    assert run.first_token == oracle(tokens, 1)[0]
    finish(run, pair)


def test_commands_of_another_epoch_are_refused(single_homes: Host, oracle: Oracle) -> None:
    old = single_homes.worker(2)
    run = old.reserve(prompt(9))
    new = single_homes.worker(2)
    peer = new.peers[0]
    for stale in (
        Adopt(old.term, old.epoch, 2, 0),
        old.reservation("stale", prompt(9), True, 0),
        Begin(old.term, old.epoch, "stale", b"", 0, b"", 0, 1, 0, GREEDY, 0),
        Step(old.term, old.epoch, 1, 0, 4, ()),
        Discard(old.term, old.epoch, run.request),
        Step(new.term + 1, new.epoch, 1, 0, 4, ()),  # newer, but never adopted
    ):
        peer.send(stale)
        refused = peer.receive(Refused)
        assert refused.command == type(stale).__name__
        assert (refused.term, refused.epoch) == (new.term, new.epoch)
    new.begin(run)
    new.step(run, 0, 4)
    assert run.first_token == oracle(run.tokens, 1)[0]
    finish(run, new)


@pytest.mark.parametrize(("degree", "base"), [(4, 0), (2, 1), (1, 1), (0, 0)])
def test_a_geometry_without_this_rank_is_refused(pair: Worker, degree: int, base: int) -> None:
    pair.peers[0].send(Adopt(pair.term, pair.epoch + 1, degree, base))
    assert pair.peers[0].receive(Refused).command == "Adopt"


def test_an_epoch_has_one_geometry(pair: Worker) -> None:
    peer = pair.peers[0]
    peer.send(Adopt(pair.term, pair.epoch, 1, 0))
    assert peer.receive(Refused).command == "Adopt"


def test_a_parked_rank_takes_nothing_but_a_newer_adopt(single_homes: Host, oracle: Oracle) -> None:
    old = single_homes.worker(2)
    run = old.reserve(prompt(9))
    old.begin(run)
    old.step(run, 0, 2)
    single_homes.epoch += 1
    park = Park(old.term, single_homes.epoch, 2, 0)
    for _ in range(2):  # a repeated Park is answered again
        old.send(park)
        for peer in old.peers:
            parked = peer.receive(Parked)
            assert (parked.term, parked.epoch) == (park.term, park.epoch)
    peer = old.peers[0]
    for stale in (
        Step(old.term, old.epoch, 9, 2, 4, ()),
        old.reservation("stale", prompt(9), True, 0),
        Park(old.term, old.epoch, 2, 0),
        Step(park.term, park.epoch, 1, 2, 4, ()),  # no geometry has this epoch
        Adopt(park.term, park.epoch, 2, 0),
    ):
        peer.send(stale)
        assert peer.receive(Refused).command == type(stale).__name__
    finish(run, old)
    new = single_homes.worker(1)
    again = new.prefill(run.tokens)
    assert again.first_token == oracle(run.tokens, 1)[0]
    finish(again, new)


def test_a_park_is_answered_after_the_steps_before_it(pair: Worker) -> None:
    run = pair.reserve(prompt(40))
    pair.begin(run)
    step = pair.send_step([run], 0, 4)
    pair.host.epoch += 1
    pair.send(Park(pair.term, pair.host.epoch, 2, 0))
    for peer in pair.peers:
        assert peer.receive(StepDone).seq == step.seq
        assert peer.receive(Parked).epoch == pair.host.epoch
    finish(run, pair)


def test_a_repeated_adopt_is_acknowledged_and_changes_nothing(pair: Worker, oracle: Oracle) -> None:
    run = pair.reserve(prompt(11))
    pair.begin(run)
    pair.step(run, 0, 2)
    pair.send(Adopt(pair.term, pair.epoch, 2, 0))
    for peer in pair.peers:
        assert peer.receive(Adopted).epoch == pair.epoch
    pair.step(run, 2, 4)
    assert run.first_token == oracle(run.tokens, 1)[0]
    finish(run, pair)


def test_a_new_epoch_forgets_what_was_begun(pair: Worker) -> None:
    run = pair.reserve(prompt(11))
    pair.begin(run)
    pair.step(run, 0, 2)
    new = pair.host.worker(2)
    new.send_step([run], 2, 4)
    for peer in new.peers:
        assert failure(peer).request == run.request
    finish(run, new)


def test_a_repeated_step_is_ignored(pair: Worker, oracle: Oracle) -> None:
    run = pair.reserve(prompt(11))
    pair.begin(run)
    pair.step(run, 0, 2)
    pair.send(Step(pair.term, pair.epoch, pair.seq, 0, 2, parts_of(run)))
    pair.step(run, 2, 4)
    assert run.first_token == oracle(run.tokens, 1)[0]
    assert not pair.peers[0].unread(StepDone)
    finish(run, pair)


def test_reservations_are_answered_while_a_step_computes(pair: Worker) -> None:
    run = pair.reserve(prompt(11))
    pair.begin(run)
    busy, late = pair.peers
    step = Step(pair.term, pair.epoch, pair.seq + 1, 0, 4, parts_of(run))
    busy.send(step)  # it waits for its peer in the first layer
    other = pair.reserve(prompt(9))
    pair.release(other)
    late.send(step)
    assert [peer.receive(StepDone).seq for peer in pair.peers] == [step.seq] * 2
    finish(run, pair)


def test_old_steps_do_not_publish_a_new_reservation(pair: Worker) -> None:
    tokens = prompt(13)
    run = pair.reserve(tokens)
    pair.begin(run)
    busy, late = pair.peers
    step = Step(pair.term, pair.epoch, pair.seq + 1, 0, 4, parts_of(run))
    busy.send(step)
    busy.send(Release(run.request))
    busy.send(pair.reservation(run.request, tokens, True, 0))
    busy.receive(Reserved)
    late.send(step)
    busy.receive(StepDone)
    late.receive(StepDone)
    assert not any(message.stored for message in busy.unread(BlocksChanged))
    finish(run, pair)


def test_random_lives_leave_nothing_behind(place: tuple[Worker, int], oracle: Oracle) -> None:
    worker, home_base = place
    roots = [prompt(24) for _ in range(3)]
    runs: list[Run] = []
    for _ in range(60):
        if len(runs) < 3 and DICE.random() < 0.6:
            tokens = DICE.choice(roots)[: DICE.randrange(24)] + prompt(DICE.randrange(1, 6))
            run = worker.reserve(tokens, home_base=home_base, keep=DICE.random() < 0.8)
            worker.begin(run)
            runs.append(run)
        elif runs:
            run = DICE.choice(runs)
            done = run.layers[-1][1] if run.layers else 0
            if DICE.random() < 0.1:
                worker.send(Discard(worker.term, worker.epoch, run.request))
            elif done < 4:
                worker.step(run, done, DICE.randrange(done + 1, 5))
                continue
            else:
                assert run.first_token == oracle(run.tokens, 1)[0]
            worker.release(run)
            runs.remove(run)
    for run in runs:
        worker.release(run)
    finish(worker.prefill(prompt(5), home_base=home_base), worker)
