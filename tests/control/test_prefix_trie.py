"""The prefix trie against a naive model, and its rules one by one."""

from __future__ import annotations

import hashlib
import random

import pytest

from vertumnusd.control.errors import IllegalEvent
from vertumnusd.control.prefix_trie import PrefixTrie
from vertumnusd.messages import BlocksChanged

ROOT = bytes(16)


def chain(text: str) -> list[bytes]:
    """One block for each letter, named by all letters up to it."""
    return [
        hashlib.blake2b(text[: n + 1].encode(), digest_size=16).digest() for n in range(len(text))
    ]


class Reporter:
    """A rank's side: numbers its reports."""

    def __init__(self, trie: PrefixTrie, rank: int) -> None:
        self.trie, self.rank, self.version = trie, rank, 0

    def report(self, stored: list[bytes] = [], evicted: list[bytes] = []) -> int:  # noqa: B006
        self.version += 1
        pairs = b"".join(ROOT + block for block in stored)
        return self.trie.apply(
            BlocksChanged(self.rank, self.version, pairs, b"".join(evicted), 0, 0, 0)
        )


def match(trie: PrefixTrie, text: str) -> dict[int, int]:
    return trie.match(b"".join(chain(text)))


def test_the_longest_prefix_of_each_home_is_found():
    trie = PrefixTrie(ranks=3, home_ranks=1)
    Reporter(trie, 0).report(stored=chain("abc"))
    Reporter(trie, 1).report(stored=chain("abxy"))
    assert match(trie, "abcd") == {0: 3, 1: 2}
    assert match(trie, "abxyz") == {0: 2, 1: 4}
    assert match(trie, "zab") == {}
    assert match(trie, "") == {}


def test_a_whole_chain_matches_to_its_end():
    trie = PrefixTrie(ranks=2, home_ranks=1)
    Reporter(trie, 1).report(stored=chain("abc"))
    assert match(trie, "abc") == {1: 3}


def test_a_home_of_two_ranks_has_what_either_of_them_reports():
    trie = PrefixTrie(ranks=4, home_ranks=2)
    blocks = chain("abcd")
    Reporter(trie, 2).report(stored=[blocks[1], blocks[3]])
    assert match(trie, "abcd") == {}  # the first block is its neighbour's
    Reporter(trie, 3).report(stored=[blocks[0]])
    assert match(trie, "abcd") == {2: 2}


def test_a_block_without_its_parent_counts_when_the_parent_is_back():
    trie = PrefixTrie(ranks=1, home_ranks=1)
    rank = Reporter(trie, 0)
    rank.report(stored=chain("abc"))
    rank.report(evicted=chain("abc")[1:2])
    assert match(trie, "abc") == {0: 1}
    rank.report(stored=chain("abc")[1:2])
    assert match(trie, "abc") == {0: 3}


def test_blocks_that_nobody_holds_take_no_memory():
    trie = PrefixTrie(ranks=2, home_ranks=1)
    first, second = Reporter(trie, 0), Reporter(trie, 1)
    first.report(stored=chain("abc"))
    second.report(stored=chain("ab"))
    first.report(evicted=chain("abc"))
    assert len(trie) == 2
    trie.drop_rank(1)
    assert len(trie) == 0


def test_a_lost_rank_is_forgotten_alone_and_starts_again_at_version_1():
    trie = PrefixTrie(ranks=2, home_ranks=1)
    for rank in (0, 1):
        Reporter(trie, rank).report(stored=chain("ab"))
    trie.drop_rank(0)
    assert match(trie, "ab") == {1: 2}
    assert Reporter(trie, 0).report(stored=chain("a")) == 0
    assert match(trie, "ab") == {0: 1, 1: 2}


def test_a_repeated_report_is_ignored():
    trie = PrefixTrie(ranks=1, home_ranks=1)
    rank = Reporter(trie, 0)
    rank.report(stored=chain("a"))
    rank.report(evicted=chain("a"))
    rank.version = 0
    assert rank.report(stored=chain("a")) == -2
    assert match(trie, "a") == {}


def test_after_a_gap_only_what_is_reported_since_is_claimed():
    trie = PrefixTrie(ranks=1, home_ranks=1)
    rank = Reporter(trie, 0)
    rank.report(stored=chain("abc"))
    rank.version += 2  # two reports went missing: they may have evicted anything
    assert rank.report(stored=chain("xy")) == 2
    assert match(trie, "abc") == {}
    assert match(trie, "xy") == {0: 2}
    assert rank.report(stored=chain("a")) == 0


def test_evicting_what_was_never_reported_changes_nothing():
    trie = PrefixTrie(ranks=2, home_ranks=1)
    Reporter(trie, 0).report(stored=chain("a"))
    Reporter(trie, 1).report(evicted=chain("a"))
    assert match(trie, "a") == {0: 1}


@pytest.mark.parametrize(("stored", "evicted"), [(b"x" * 31, b""), (b"", b"x" * 17)])
def test_a_torn_report_is_illegal_and_changes_nothing(stored, evicted):
    trie = PrefixTrie(ranks=1, home_ranks=1)
    with pytest.raises(IllegalEvent, match="odd length"):
        trie.apply(BlocksChanged(0, 1, stored, evicted, 0, 0, 0))
    assert Reporter(trie, 0).report(stored=chain("a")) == 0


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("home_ranks", [1, 2, 4])
def test_it_agrees_with_a_naive_model(home_ranks, seed):
    """Random stores, evictions and losses, in any order; the model keeps a set for each rank."""
    choose = random.Random(seed)
    ranks = 8
    trie = PrefixTrie(ranks, home_ranks)
    reporters = [Reporter(trie, rank) for rank in range(ranks)]
    model: list[set[bytes]] = [set() for _ in range(ranks)]
    for _ in range(60):
        rank = choose.randrange(ranks)
        if choose.random() < 0.05:
            trie.drop_rank(rank)
            reporters[rank], model[rank] = Reporter(trie, rank), set()
            continue
        text = "".join(choose.choices("ab", k=choose.randrange(1, 7)))
        stored = [block for block in chain(text) if choose.random() < 0.7]
        held = sorted(model[rank] - set(stored))
        evicted = choose.sample(held, min(len(held), choose.randrange(3)))
        reporters[rank].report(stored, evicted)
        model[rank] = (model[rank] | set(stored)) - set(evicted)
        probe = "".join(choose.choices("ab", k=7))
        assert match(trie, probe) == naive_match(model, home_ranks, probe)
    assert len(trie) == len(set.union(*model))


def naive_match(model: list[set[bytes]], home_ranks: int, text: str) -> dict[int, int]:
    lengths = {}
    for base in range(0, len(model), home_ranks):
        held = set.union(*model[base : base + home_ranks])
        length = 0
        while length < len(text) and chain(text)[length] in held:
            length += 1
        if length:
            lengths[base] = length
    return lengths
