"""The prefix trie with a million blocks on 64 ranks: its memory, and the longest that it stalls.

Conversations that share a hundred system prompts go on turn by turn, most where they are, some on
another rank. When there are enough of them, ranks evict what they have not used longest, the
deepest blocks first, as they store. Every lookup and update is timed, and at last the loss of a
rank, with the CPU time of the thread, as others may take the core meanwhile. Memory is the growth
of the process, all in; also for a million chains of a single block, the worst case. ``gc_ms`` is
how much longer a full garbage collection takes. Targets: 250 bytes a block, and no stall above
5 ms; the ratio is the larger one of both figures over its target.
"""

from __future__ import annotations

import gc
import hashlib
import os
import random
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from harness import result, say

from vertumnusd.control.prefix_trie import ROOT, PrefixTrie
from vertumnusd.messages import HASH_BYTES, BlocksChanged

MILLION = 1_000_000
RANKS = 64
PROMPTS, PROMPT_BLOCKS = 100, 8
TURN_BLOCKS = 100  # at the most
CHURN_TURNS = 5000
TARGET_BYTES, TARGET_MS = 250.0, 5.0


class Load:
    """What ranks report turn by turn, and the lookups before."""

    def __init__(self) -> None:
        self.trie = PrefixTrie(RANKS, home_ranks=1)
        self.slowest_ms = {"lookup": 0.0, "update": 0.0, "loss": 0.0}
        self._random = random.Random(1)
        self._versions = [0] * RANKS
        self._held: OrderedDict[tuple[int, int], int] = OrderedDict()  # rank, conversation: blocks
        self._recent: list[tuple[int, int]] = []
        self._conversations = 0

    def turn(self) -> None:
        rank, conversation = self._random.randrange(RANKS), self._conversations
        if self._recent and self._random.random() < 0.6:
            there, conversation = self._random.choice(self._recent)
            rank = rank if self._random.random() < 0.2 else there
        else:
            self._conversations += 1
        blocks = max(self._held.get((r, conversation), 0) for r in range(RANKS))
        names = chain(conversation, blocks + self._random.randrange(1, TURN_BLOCKS))
        cached = self.look_up(names).get(rank, 0)
        self.report(rank, [ROOT, *names][cached:-1], names[cached:], [])
        self._held[rank, conversation] = len(names)
        self._held.move_to_end((rank, conversation))
        self._recent = [*self._recent[-50:], (rank, conversation)]

    def turn_with_evictions(self) -> None:
        self.turn()
        while len(self.trie) > MILLION:
            (rank, conversation), blocks = self._held.popitem(last=False)
            self.report(rank, [], [], chain(conversation, blocks)[PROMPT_BLOCKS:][::-1])

    def single_blocks(self) -> None:
        """Chains of one block, many in a report."""
        names = [self._random.randbytes(HASH_BYTES) for _ in range(TURN_BLOCKS)]
        self.report(self._random.randrange(RANKS), [ROOT] * len(names), names, [])

    def look_up(self, names: list[bytes]) -> dict[int, int]:
        path = b"".join(names)
        before = time.thread_time()
        found = self.trie.match(path)
        self._took("lookup", before)
        return found

    def report(
        self, rank: int, parents: list[bytes], stored: list[bytes], evicted: list[bytes]
    ) -> None:
        self._versions[rank] += 1
        pairs = b"".join(map(bytes.__add__, parents, stored))
        event = BlocksChanged(rank, self._versions[rank], pairs, b"".join(evicted), 0, 0, 0)
        before = time.thread_time()
        self.trie.apply(event)
        self._took("update", before)

    def lose(self, rank: int) -> None:
        before = time.thread_time()
        self.trie.drop_rank(rank)
        self._took("loss", before)
        self._versions[rank] = 0

    def _took(self, what: str, before: float) -> None:
        self.slowest_ms[what] = max(self.slowest_ms[what], 1e3 * (time.thread_time() - before))


def main() -> int:
    idle_ms = collection_ms()
    conversations, bytes_a_block = grown(Load.turn)
    gc_ms = collection_ms() - idle_ms
    for _ in range(CHURN_TURNS):
        conversations.turn_with_evictions()
    conversations.lose(0)
    for _ in range(CHURN_TURNS):
        conversations.report(1, [], [], [])  # gives back what the lost rank held
    say(f"conversations: {bytes_a_block:.0f} bytes a block, {conversations.trie.snapshot()}")
    say(f"slowest, ms: {conversations.slowest_ms}; garbage collection {gc_ms:+.1f} ms")
    slowest_ms = conversations.slowest_ms
    del conversations
    singles, single_bytes = grown(Load.single_blocks)
    say(f"chains of one block: {single_bytes:.0f} bytes a block, {singles.trie.snapshot()}")
    result(
        bytes_a_block=round(bytes_a_block),
        bytes_a_single_block=round(single_bytes),
        **{f"slowest_{what}_ms": round(ms, 2) for what, ms in slowest_ms.items()},
        gc_ms=round(gc_ms, 1),
        ratio=round(max(single_bytes / TARGET_BYTES, max(slowest_ms.values()) / TARGET_MS), 2),
    )
    return 0


def grown(step: Callable[[Load], None]) -> tuple[Load, float]:
    """A load of a million blocks, and the bytes that each takes."""
    load = Load()
    gc.collect()
    before = resident_bytes()
    while len(load.trie) < MILLION:
        step(load)
    gc.collect()
    return load, (resident_bytes() - before) / len(load.trie)


def collection_ms() -> float:
    gc.collect()
    before = time.thread_time()
    gc.collect()
    return 1e3 * (time.thread_time() - before)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def chain(conversation: int, blocks: int) -> list[bytes]:
    """Its names: a system prompt that many share, then blocks of its own."""
    prompt = conversation % PROMPTS
    return [
        hashlib.blake2b(
            f"{prompt if block < PROMPT_BLOCKS else -conversation} {block}".encode(),
            digest_size=HASH_BYTES,
        ).digest()
        for block in range(blocks)
    ]


if __name__ == "__main__":
    sys.exit(main())
