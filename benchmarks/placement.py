"""How fast the controller places requests, and what finding their prefixes costs. No process runs.

At 8 and at 64 workers: Submit events a second (admission, longest prefix at every home, J over all
workers, reservation), and the time of one walk of the prefix trie. The inputs are conversations of
2K to 32K tokens, half of them already cached up to a random turn on one to four homes. The ratio is
the time that walking the chain home by home takes, over that of the trie's one walk, at 64
workers; the target of the placements is 10,000 a second.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from harness import median, result, say

from vertumnusd.control.controller import Controller
from vertumnusd.control.prefill_time import Coefficients, PrefillTime
from vertumnusd.control.prefix_trie import PrefixTrie
from vertumnusd.control.settings import Settings
from vertumnusd.messages import (
    HASH_BYTES,
    Adopted,
    AdoptWorker,
    BlocksChanged,
    Cancel,
    RankUp,
    Seated,
    Submit,
)

BLOCK_TOKENS = 64
REQUESTS = 2000
ROUNDS = 5
# A fit of Qwen3-30B-A3B on H20 GPUs
PREFILL_TIME = PrefillTime(Coefficients(0.045, 2.106e-5, 1e-6, 4.150e-5, 2.952e-9))
COMPOSITIONS = {8: ("2CP4/2CP2/4CP1", 16), 64: ("16CP4/16CP2/32CP1", 128)}


def main() -> None:
    figures: dict[str, float] = {}
    for workers, (composition, ranks) in COMPOSITIONS.items():
        rng = random.Random(workers)
        chains = [rng.randbytes(HASH_BYTES * rng.randrange(32, 512)) for _ in range(REQUESTS)]
        reports = cached(rng, chains, ranks)
        figures[f"placements_per_s_{workers}"] = placements_per_s(
            settings(composition, ranks), chains, reports
        )
        match_us, naive_us = match_times_us(chains, reports, ranks)
        figures[f"match_us_{workers}"] = match_us
        figures[f"naive_match_us_{workers}"] = naive_us
        for name, value in figures.items():
            if name.endswith(f"_{workers}"):
                say(f"{name:22}{value:12.1f}")
    result(**figures, ratio=figures["naive_match_us_64"] / figures["match_us_64"])


def settings(composition: str, ranks: int) -> Settings:
    return Settings(
        cp_degrees=(1, 2, 4),
        ranks=ranks,
        home_ranks=1,
        composition=composition,
        block_tokens=BLOCK_TOKENS,
        kv_blocks=9000,
        decode_ranks=1,
        decode_kv_blocks=9000,
        max_queue_tokens=10**9,
        max_queue_s=1e9,
        unplaced_wait_s=60.0,
    )


def cached(rng: random.Random, chains: list[bytes], ranks: int) -> list[BlocksChanged]:
    """Every second chain, up to a random turn, on one to four ranks."""
    reports = []
    versions = [0] * ranks
    for chain in chains[::2]:
        turn = rng.randrange(1, len(chain) // HASH_BYTES)
        pairs = b"".join(bytes(HASH_BYTES) + block for block in split(chain)[:turn])
        for rank in rng.sample(range(ranks), rng.randrange(1, 5)):
            versions[rank] += 1
            reports.append(BlocksChanged(rank, versions[rank], pairs, b"", 0, 0, 0))
    return reports


def placements_per_s(chosen: Settings, chains: list[bytes], reports: list[BlocksChanged]) -> float:
    controller = Controller(chosen, PREFILL_TIME)
    commands = [*controller.step(0.0, Seated(1))]
    for rank in range(chosen.ranks):
        commands += controller.step(0.0, RankUp(rank, "prefill", 1))
    for command in commands:
        assert isinstance(command, AdoptWorker)
        for rank in range(command.base, command.base + command.degree):
            controller.step(0.0, Adopted(rank, 1, command.epoch, command.degree))
    for report in reports:
        controller.step(0.0, report)
    rates = []
    for turn in range(ROUNDS):
        submits = [
            Submit(f"{turn}-{n}", 0, len(chain) // HASH_BYTES * BLOCK_TOKENS + 40, chain, 1)
            for n, chain in enumerate(chains)
        ]
        rates.append(len(chains) / timed(lambda each: controller.step(1.0, each), submits))
        for submit in submits:
            controller.step(2.0, Cancel(submit.request))
    return median(rates)


def match_times_us(
    chains: list[bytes], reports: list[BlocksChanged], ranks: int
) -> tuple[float, float]:
    """One walk for all homes, and one walk for each; both find the same."""
    trie = PrefixTrie(ranks, home_ranks=1)
    held: list[set[bytes]] = [set() for _ in range(ranks)]
    for report in reports:
        trie.apply(report)
        held[report.rank].update(split(report.stored)[1::2])

    def naive(chain: bytes) -> dict[int, int]:
        lengths = {home: prefix(chain, blocks) for home, blocks in enumerate(held)}
        return {home: length for home, length in lengths.items() if length}

    assert all(trie.match(chain) == naive(chain) for chain in chains)
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(timed(trie.match, chains))
        theirs.append(timed(naive, chains))
    return 1e6 * median(ours) / len(chains), 1e6 * median(theirs) / len(chains)


def prefix(chain: bytes, held: set[bytes]) -> int:
    for depth in range(len(chain) // HASH_BYTES):
        if chain[depth * HASH_BYTES : (depth + 1) * HASH_BYTES] not in held:
            return depth
    return len(chain) // HASH_BYTES


def split(chain: bytes) -> list[bytes]:
    return [chain[n : n + HASH_BYTES] for n in range(0, len(chain), HASH_BYTES)]


def timed(act: Callable[[Any], object], items: Sequence[Any]) -> float:
    start = time.perf_counter()
    for item in items:
        act(item)
    return time.perf_counter() - start


main()
