"""The exchange by collectives: its meetings and fetches alone, and prefills that use it."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_ranks import EngineRanks, Shape, engine_ranks

from vertumnusd.layout import kv_pool_bytes
from vertumnusd.messages import ModelInfo, RankStart
from vertumnusd.rank.collective_exchange import CollectiveExchange
from vertumnusd.rank.groups import CollectiveError, Groups
from vertumnusd.rank.host_helper import open_store
from vertumnusd.rank.kv_pool import KVPool
from vertumnusd.rank.plan import split

pytestmark = pytest.mark.ranks

MODEL = ModelInfo("m", "llama", 2, 8, 2, 1, 4, 8, 10, 64, 1e-5, 1e4, True, "float32")
BLOCK, BLOCKS = 8, 6
Run = Callable[[Callable[[CollectiveExchange, int], object]], list[object]]


@pytest.fixture
def ranks() -> Iterator[Run]:
    """Run a function on the exchange of each of two ranks, which are threads, side by side."""
    store = open_store("127.0.0.1")

    def start(rank: int) -> RankStart:
        return RankStart(
            rank=rank, kind="prefill", incarnation=0, generation="g", model=MODEL, tensors=[],
            weights_fd=-1, store_host="127.0.0.1", store_port=store.port, cp_degrees=(2,),
            block_tokens=BLOCK, kv_blocks=BLOCKS, kv_fds=(0, 1), exchange_fds=(),
            exchange_tokens=64, own_kv_fd=-1, own_kv_blocks=0, core=-1, collective_timeout_s=20.0,
        )  # fmt: skip

    fds = [os.memfd_create("pool") for _ in range(2)]
    exchanges = []
    with ThreadPoolExecutor(2) as threads:
        groups = list(threads.map(Groups, map(start, range(2))))
        for rank, fd in enumerate(fds):
            os.ftruncate(fd, kv_pool_bytes(MODEL, BLOCKS, BLOCK))
            pool = KVPool(fd, BLOCKS, MODEL, BLOCK)
            for block in range(BLOCKS):  # every value tells its rank, layer, K or V, and block
                for layer in range(2):
                    pool.kv_2NTHD[layer][:, block] = 1000 * rank + 100 * layer + block
                    pool.kv_2NTHD[layer][1, block] += 10
            exchange = CollectiveExchange(rank, pool, 64)
            exchange.adopt(groups[rank].group(2, 0))
            exchanges.append(exchange)
        yield lambda call: list(threads.map(call, exchanges, range(2)))
    for fd in fds:
        os.close(fd)


def numbered(span: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """K of suffix token t is t, V is −t."""
    k_T = torch.arange(span.start, span.stop, dtype=torch.float32)
    return k_T.view(-1, 1, 1).expand(-1, 1, 4), -k_T.view(-1, 1, 1).expand(-1, 1, 4)


@pytest.mark.parametrize("tokens", [1, 2, 3, 37, 64])
def test_the_whole_suffix_is_in_order_on_every_rank(ranks: Run, tokens: int) -> None:
    spans = [[chunk.tokens for chunk in chunks] for chunks in split(tokens, 0, 2)]
    check(ranks, spans, tokens)


def test_ranks_may_have_several_spans_or_none(ranks: Run) -> None:
    """As a pack has them, whose requests lie behind one another in the suffix."""
    check(ranks, [[slice(0, 5), slice(9, 12), slice(20, 21)], [slice(5, 9), slice(12, 20)]], 21)
    check(ranks, [[], [slice(0, 7)]], 7)


def check(ranks: Run, spans: Sequence[Sequence[slice]], tokens: int) -> None:
    def meet(exchange: CollectiveExchange, rank: int) -> list[list[float]]:
        for span in spans[rank]:
            exchange.put(0, span.start, *numbered(span))
        return [kv[:, 0, 3].tolist() for kv in exchange.meet(0, tokens, spans)]

    whole = [list(map(float, range(tokens))), [float(-t) for t in range(tokens)]]
    assert ranks(meet) == [whole, whole]


def test_a_prefix_comes_from_the_pools_that_have_it(ranks: Run) -> None:
    def fetch(exchange: CollectiveExchange, rank: int) -> list[list[float]]:
        found = exchange.fetch(1, [(0, [4, 2]), (1, [5])])()
        return [
            k_SHD[::BLOCK, 0, 0].tolist() + v_SHD[::BLOCK, 0, 0].tolist() for k_SHD, v_SHD in found
        ]

    pieces = [[104.0, 102.0, 114.0, 112.0], [1105.0, 1115.0]]
    assert ranks(fetch) == [pieces, pieces]


def test_the_next_layer_is_under_way_while_ranks_meet(ranks: Run) -> None:
    def layers(exchange: CollectiveExchange, rank: int) -> list[float]:
        ahead = exchange.fetch(1, [(1, [3])])
        exchange.put(0, rank, *numbered(slice(rank, rank + 1)))
        k_SHD, _ = exchange.meet(0, 2, [[slice(0, 1)], [slice(1, 2)]])
        return [*k_SHD[:, 0, 0].tolist(), float(ahead()[0][0][0, 0, 0])]

    assert ranks(layers) == [[0.0, 1.0, 1103.0]] * 2


def test_a_rank_that_fails_a_step_ends_but_passes_one_that_nobody_began(ranks: Run) -> None:
    def skip(exchange: CollectiveExchange, rank: int) -> int:
        exchange.skip(3, begun=False)
        with pytest.raises(CollectiveError, match="count on its part"):
            exchange.skip(4, begun=True)
        return exchange.turn

    assert ranks(skip) == [3, 3]


# --- on processes


@pytest.fixture(scope="module")
def pair(checkpoint: Path) -> Iterator[tuple[EngineRanks, EngineRanks]]:
    """Four ranks that exchange through memory, and four that exchange by collectives."""
    shape = Shape(ranks=4, cp_degrees=(2, 4), home_ranks=2, kv_blocks=256)
    collective = Shape(
        ranks=4, cp_degrees=(2, 4), home_ranks=2, kv_blocks=256, exchange="collective"
    )
    with engine_ranks(checkpoint, shape) as one, engine_ranks(checkpoint, collective) as other:
        yield one, other


@pytest.mark.parametrize(
    ("length", "cached"),
    [(1, 0), (3, 0), (37, 0), (65, 64), (301, 296), (117, 8), (190, 160)],
)
@pytest.mark.parametrize("degree", [2, 4])
def test_logits_are_those_of_the_shared_exchange(
    pair: tuple[EngineRanks, EngineRanks], degree: int, length: int, cached: int
) -> None:
    tokens = random.Random(length).choices(range(256), k=length)
    found = []
    for engine in pair:
        engine.adopt(degree)
        engine.id_step = 3  # scattered
        _, prefix = engine.prefill(tokens[:cached] or tokens, rotation=1)
        request, _ = engine.begin(tokens, prefix, cached)
        engine.run(request, 0, 1)
        found.append(engine.run(request, 1, engine.model.layers))
        engine.call(engine.worker, "discard", request)
    shared, collective = found
    assert shared is not None
    np.testing.assert_allclose(collective, shared, rtol=0, atol=1e-5 * np.abs(shared).max())


def test_a_dead_peer_raises_long_before_the_timeout(checkpoint: Path) -> None:
    shape = Shape(ranks=2, cp_degrees=(2,), collective_timeout_s=600.0, exchange="collective")
    with engine_ranks(checkpoint, shape) as engine:
        engine.adopt(2)
        request, _ = engine.begin(list(range(40)))
        os.kill(engine.processes[1].pid, signal.SIGKILL)
        with pytest.raises(CollectiveError):
            engine.call([0], "run", engine.step([request], 0, engine.model.layers))
