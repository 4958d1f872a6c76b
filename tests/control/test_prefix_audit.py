"""The audit finds exactly what is wrong; reports rebuild the trie."""

from __future__ import annotations

import random

import msgspec
import pytest
from trie_chains import Home, Reporter, chain, name, owner_of, prefixes

from vertumnusd.control.prefix_audit import audit, reports
from vertumnusd.control.prefix_trie import PrefixTrie
from vertumnusd.messages import BlocksChanged


def names(*paths: str) -> bytes:
    return b"".join(name(path) for path in paths)


def test_an_audit_of_the_truth_finds_nothing():
    trie = PrefixTrie(ranks=2, home_ranks=1)
    rank = Reporter(trie, 0)
    rank.report(stored=[*prefixes("abc"), "xyz"])  # the last waits for its parent
    rank.report(evicted=["ab"])
    wrong, missing = audit(trie, 0, names("a", "abc", "xyz"))
    assert (wrong, missing) == (set(), set())


def test_an_audit_names_what_differs():
    trie = PrefixTrie(ranks=2, home_ranks=1)
    Reporter(trie, 0).report(stored=prefixes("abc"))
    Reporter(trie, 1).report(stored=prefixes("abx"))
    differences = audit(trie, 0, names("a", "ab", "abx"))
    assert differences.wrong == {name("abc")}
    assert differences.missing == {name("abx")}


def test_in_a_home_of_two_each_rank_is_audited_for_its_own():
    trie = PrefixTrie(ranks=2, home_ranks=2)
    Home(trie, 0, 2).store("abcde")
    for rank in (0, 1):
        mine = [path for path in prefixes("abcde") if owner_of(path, 0, 2) == rank]
        assert audit(trie, rank, names(*mine)) == (set(), set())


@pytest.mark.parametrize("home_ranks", [1, 2])
@pytest.mark.parametrize("seed", range(20))
def test_a_rebuilt_trie_finds_the_same_and_goes_on(home_ranks, seed):
    choose = random.Random(seed)
    trie = PrefixTrie(4, home_ranks)
    homes = [Home(trie, home, home_ranks) for home in range(0, 4, home_ranks)]
    for _ in range(20):
        path = "".join(choose.choices("ab", k=choose.randrange(1, 9)))
        home = choose.choice(homes)
        home.store(path)
        if choose.random() < 0.5:
            home.evict(path, behind=choose.randrange(len(path)))
    rebuilt = PrefixTrie(4, home_ranks)
    for report in reports(trie):
        rebuilt.apply(msgspec.json.decode(msgspec.json.encode(report), type=BlocksChanged))
    for path in ("".join(choose.choices("ab", k=9)) for _ in range(50)):
        assert rebuilt.match(chain(path)) == trie.match(chain(path))
    for rank in range(4):
        assert set(rebuilt.claims(rank)) == set(trie.claims(rank))
    for home in homes:
        for reporter in home.reporters:
            reporter.trie = rebuilt
            assert reporter.report() == 0  # no report is missing


def test_what_it_is_made_of_can_be_shown():
    trie = PrefixTrie(ranks=2, home_ranks=1)
    Reporter(trie, 0).report(stored=[*prefixes("abc"), "xyz"])
    shown = trie.snapshot()
    assert (shown["blocks"], shown["pending_blocks"], shown["runs"]) == (3, 1, 1)
    assert shown["memory_bytes"] > 0
