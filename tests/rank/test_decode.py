"""The decode rank process: KV pulled from other pools, batches that mix, and clean ends."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from driver import GREEDY, Host, Run, Shape, Worker, host
from oracle import Oracle
from peer import Peer

from vertumnusd.layout import owner
from vertumnusd.messages import (
    Close,
    Closed,
    DecodeFailed,
    Drawn,
    Generate,
    Open,
    Pull,
    Pulled,
    Sampling,
)

pytestmark = pytest.mark.ranks

DECODE_BLOCKS = 64
DICE = random.Random(1)


@pytest.fixture(scope="module", params=[1, 2], ids=["single homes", "double home"])
def serving(request: pytest.FixtureRequest, checkpoint: Path) -> Iterator[Host]:
    shape = Shape(home_ranks=request.param, decode_kv_blocks=DECODE_BLOCKS, kv_blocks=128)
    with host(checkpoint, shape) as running:
        yield running


@pytest.fixture
def worker(serving: Host) -> Iterator[Worker]:
    """A worker of both ranks; afterwards the decode rank must be idle."""
    yield serving.worker(2)
    serving.decode[0].send(Open("probe", 0, GREEDY, ()))
    assert serving.close("probe") == DECODE_BLOCKS
    serving.decode[0].forget()


def prompt(length: int) -> list[int]:
    return DICE.choices(range(256), k=length)


def start(worker: Worker, tokens: list[int], new_tokens: int) -> Run:
    """Prefill, pull, and let the answer begin."""
    run = worker.prefill(tokens)
    worker.host.open(run, -(-(len(tokens) + new_tokens) // 4))
    worker.host.pull(run)
    worker.host.start_generating(run, new_tokens)
    return run


def end(worker: Worker, *runs: Run) -> None:
    for run in runs:
        worker.host.close(run.request)
        worker.release(run)


def lines(drawn: Drawn) -> dict[str, tuple[int, str]]:
    return dict(zip(drawn.requests, zip(drawn.tokens, drawn.finished, strict=True), strict=True))


def test_answers_run_to_their_length(worker: Worker, oracle: Oracle) -> None:
    tokens = prompt(21)
    run = start(worker, tokens, 30)
    drawn = worker.host.drain([run.request])[run.request]
    assert [run.first_token, *drawn] == oracle(tokens, 31)
    end(worker, run)


def test_a_stop_token_ends_the_answer_and_is_reported(worker: Worker, oracle: Oracle) -> None:
    tokens = prompt(10)
    expected = oracle(tokens, 8)
    run = worker.prefill(tokens)
    worker.host.open(run, 10, stop_tokens=(expected[4],))
    worker.host.pull(run)
    worker.host.start_generating(run, 20)
    seen = []
    while not (seen and seen[-1][1]):
        seen.append(lines(worker.host.decode[0].receive(Drawn))[run.request])
    assert [token for token, _ in seen] == expected[1 : expected.index(expected[4], 1) + 1]
    assert [finished for _, finished in seen] == [""] * (len(seen) - 1) + ["stop"]
    end(worker, run)


def test_the_last_token_says_length(worker: Worker) -> None:
    run = start(worker, prompt(5), 1)
    assert lines(worker.host.decode[0].receive(Drawn))[run.request][1] == "length"
    end(worker, run)


def test_a_batch_draws_what_each_request_draws_alone(worker: Worker, oracle: Oracle) -> None:
    prompts = [prompt(n) for n in (3, 18, 40)]
    runs = [worker.prefill(tokens) for tokens in prompts]
    for run in runs:
        worker.host.open(run, 16)
        worker.host.pull(run)
    worker.host.start_generating(runs[0], 20)
    first = [lines(worker.host.decode[0].receive(Drawn)) for _ in range(3)]  # it runs alone
    for run in runs[1:]:
        worker.host.start_generating(run, 20)
    drawn: dict[str, list[int]] = {run.request: [] for run in runs}
    sizes, unfinished = set(), len(runs)
    while unfinished:
        batch = first.pop(0) if first else lines(worker.host.decode[0].receive(Drawn))
        sizes.add(len(batch))
        for request, (token, finished) in batch.items():
            drawn[request].append(token)
            unfinished -= bool(finished)
    assert {1, 3} <= sizes
    for run in runs:
        assert [run.first_token, *drawn[run.request]] == oracle(run.tokens, 21)
    end(worker, *runs)


def test_closing_one_request_leaves_the_others_running(worker: Worker, oracle: Oracle) -> None:
    stays, leaves = start(worker, prompt(7), 40), start(worker, prompt(9), 40)
    decode = worker.host.decode[0]
    drawn = []
    while leaves.request not in (batch := lines(decode.receive(Drawn))):
        drawn += [batch[stays.request][0]] if stays.request in batch else []
    worker.host.close(leaves.request)
    late = [batch, *(lines(message) for message in decode.unread(Drawn))]
    decode.forget()
    drawn += [batch[stays.request][0] for batch in late if stays.request in batch]
    while len(drawn) < 40:
        batch = lines(decode.receive(Drawn))
        assert set(batch) == {stays.request}
        drawn.append(batch[stays.request][0])
    assert [stays.first_token, *drawn] == oracle(stays.tokens, 41)
    end(worker, stays)
    worker.release(leaves)


def test_a_generate_waits_for_the_copies_before_it(worker: Worker, oracle: Oracle) -> None:
    tokens = prompt(30)
    run = worker.prefill(tokens, layers_per_step=1)
    worker.host.open(run, 16)
    for first, last in reversed(run.layers):
        worker.host.decode[0].send(pull_of(run, first, last))
    worker.host.start_generating(run, 4)
    drawn = worker.host.drain([run.request])[run.request]
    assert [run.first_token, *drawn] == oracle(tokens, 5)
    assert [m.last_layer for m in worker.host.decode[0].unread(Pulled)] == [4, 3, 2, 1]
    end(worker, run)


def pull_of(run: Run, first: int, last: int) -> Pull:
    return Pull(
        run.request, first, last, run.block_ids, run.home_base, run.home_ranks, run.rotation
    )


def test_pulled_says_how_many_bytes_came(worker: Worker) -> None:
    run = worker.prefill(prompt(9))
    worker.host.open(run, 3)
    worker.host.decode[0].send(pull_of(run, 1, 3))
    # 3 blocks of 4 tokens, 2 layers, K and V of 2 heads of 16 floats
    assert worker.host.decode[0].receive(Pulled).kv_bytes == 3 * 4 * 2 * 2 * 2 * 16 * 4
    end(worker, run)


def test_a_close_during_copies_frees_all_and_answers_each_pull(worker: Worker) -> None:
    run = worker.prefill(prompt(100))
    worker.host.open(run, 26)
    decode = worker.host.decode[0]
    for _ in range(50):
        decode.send(pull_of(run, 0, 4))
    assert worker.host.close(run.request) == DECODE_BLOCKS
    assert len(decode.unread(Pulled)) == 50  # all before Closed
    worker.release(run)


def test_blocks_in_pieces_serve_as_well_as_a_run(worker: Worker, oracle: Oracle) -> None:
    decode = worker.host.decode[0]
    for n in range(DECODE_BLOCKS):
        decode.send(Open(f"filler {n}", 1, GREEDY, ()))
    for n in range(0, DECODE_BLOCKS, 2):
        worker.host.close(f"filler {n}")
    tokens = prompt(33)
    run = start(worker, tokens, 20)
    drawn = worker.host.drain([run.request])[run.request]
    assert [run.first_token, *drawn] == oracle(tokens, 21)
    for n in range(1, DECODE_BLOCKS, 2):
        worker.host.close(f"filler {n}")
    end(worker, run)


def failure(decode: Peer) -> DecodeFailed:
    return decode.receive(DecodeFailed)


def test_without_room_the_open_fails_and_still_closes(worker: Worker) -> None:
    decode = worker.host.decode[0]
    decode.send(Open("big", DECODE_BLOCKS + 1, GREEDY, ()))
    assert "65 blocks needed, 64 available" in failure(decode).reason
    decode.send(Pull("big", 0, 4, b"", 0, 1, 0))
    assert decode.receive(Pulled).kv_bytes == 0
    decode.send(Generate("big", 1, 1, 0, 1))  # ignored
    assert worker.host.close("big") == DECODE_BLOCKS
    assert not decode.unread(DecodeFailed)


@pytest.mark.parametrize(
    "generate", [Generate("g", 1, 5, 0, 4), Generate("g", 1, 5, 0, 0)], ids=["too long", "nothing"]
)
def test_a_generate_that_cannot_run_fails(worker: Worker, generate: Generate) -> None:
    decode = worker.host.decode[0]
    decode.send(Open("g", 2, GREEDY, ()))
    decode.send(generate)
    assert failure(decode).request == "g"
    worker.host.close("g")


@pytest.mark.parametrize(
    ("first", "last", "block_ids"),
    [(0, 4, [1, 2, 3]), (0, 4, [128]), (0, 5, [1]), (-1, 1, [1])],
    ids=["more blocks than set aside", "no such block", "no such layer", "negative layer"],
)
def test_a_pull_that_cannot_run_fails_and_is_answered(
    worker: Worker, first: int, last: int, block_ids: list[int]
) -> None:
    decode = worker.host.decode[0]
    decode.send(Open("p", 2, GREEDY, ()))
    decode.send(Pull("p", first, last, array("I", block_ids).tobytes(), 0, 1, 0))
    assert decode.receive(Pulled).kv_bytes == 0
    assert failure(decode).request == "p"
    decode.send(Generate("p", 1, 5, 0, 40))  # ignored, though it would not fit
    worker.host.close("p")
    assert not decode.unread(DecodeFailed)


def test_unknown_requests_are_ignored_but_their_pulls_answered(worker: Worker) -> None:
    decode = worker.host.decode[0]
    decode.send(Close("nobody"))
    decode.send(Generate("nobody", 1, 1, 0, 1))
    decode.send(Pull("nobody", 0, 4, array("I", [1]).tobytes(), 0, 1, 0))
    pulled = decode.receive(Pulled)
    assert (pulled.request, pulled.kv_bytes) == ("nobody", 0)
    assert not decode.unread(DecodeFailed) + decode.unread(Closed)


def test_repeats_are_ignored(worker: Worker, oracle: Oracle) -> None:
    tokens = prompt(12)
    run = worker.prefill(tokens)
    for _ in range(2):
        worker.host.open(run, 8)
    worker.host.pull(run)
    for _ in range(2):
        worker.host.start_generating(run, 6)
    drawn = worker.host.drain([run.request])[run.request]
    assert [run.first_token, *drawn] == oracle(tokens, 7)
    worker.host.decode[0].send(Close(run.request))
    end(worker, run)
    assert not worker.host.decode[0].unread(DecodeFailed)


def test_a_name_can_be_opened_again_right_after_its_close(worker: Worker, oracle: Oracle) -> None:
    run = start(worker, prompt(12), 40)
    worker.host.decode[0].send(Close(run.request))
    worker.host.open(run, 13)
    worker.host.decode[0].receive(Closed)
    worker.host.decode[0].forget()
    worker.host.pull(run)
    worker.host.start_generating(run, 40)
    drawn = worker.host.drain([run.request])[run.request]
    assert [run.first_token, *drawn] == oracle(run.tokens, 41)
    end(worker, run)


def sampled(worker: Worker, tokens: list[int], new_tokens: int, position: int = 0) -> Run:
    """A run that draws by temperature, from ``position`` of the answer on."""
    sampling = Sampling(temperature=2.0, top_p=0.99, seed=17)
    run = worker.reserve(tokens)
    run.position = position
    worker.begin(run, sampling)
    worker.step(run, 0, 4)
    worker.host.open(run, -(-(len(tokens) + new_tokens) // 4), sampling)
    worker.host.pull(run)
    worker.host.start_generating(run, new_tokens)
    return run


def test_a_seed_gives_the_same_text_alone_in_a_batch_and_resumed(worker: Worker) -> None:
    tokens = prompt(20)
    alone = sampled(worker, tokens, 20)
    text = [alone.first_token, *worker.host.drain([alone.request])[alone.request]]
    assert len(set(text)) > 5
    other, again = start(worker, prompt(9), 25), sampled(worker, tokens, 20)
    drawn = worker.host.drain([other.request, again.request])
    assert [again.first_token, *drawn[again.request]] == text
    resumed = sampled(worker, tokens + text[:8], 12, position=8)
    assert [resumed.first_token, *worker.host.drain([resumed.request])[resumed.request]] == text[8:]
    end(worker, alone, other, again, resumed)


def test_logits_that_are_no_numbers_fail_their_request_alone(
    worker: Worker, oracle: Oracle
) -> None:
    healthy, broken = worker.prefill(prompt(9)), worker.prefill(prompt(9))
    first_rank = owner(0, broken.home_base, broken.rotation, worker.host.shape.home_ranks)
    for kv_2NTHD in worker.host.pool(first_rank).kv_2NTHD:
        kv_2NTHD[:, array("I", broken.block_ids)[0]] = torch.nan
    for run in (healthy, broken):
        worker.host.open(run, 16)
        worker.host.pull(run)
    decode = worker.host.decode[0]
    worker.host.start_generating(broken, 20)
    worker.host.start_generating(healthy, 20)
    assert failure(decode).request == broken.request
    drawn = worker.host.drain([healthy.request])[healthy.request]
    assert [healthy.first_token, *drawn] == oracle(healthy.tokens, 21)
    end(worker, healthy, broken)


def test_bfloat16_is_served_too(checkpoint: Path, oracle: Oracle) -> None:
    tokens = random.Random(5).choices(range(256), k=30)  # its answer allows for rounding
    with host(checkpoint, Shape(ranks=1, cp_degrees=(1,)), dtype="bfloat16") as running:
        run = running.worker(1).prefill(tokens)
        assert running.generate(run, 10, 5) == oracle(tokens, 6)
