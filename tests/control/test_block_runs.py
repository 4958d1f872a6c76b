"""The tree of runs is whole after any change, and its runs are as few as they can be."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from trie_chains import Home, Reporter, chain, name, prefixes

from vertumnusd.control.block_index import GONE
from vertumnusd.control.block_runs import BlockRuns
from vertumnusd.control.holder_masks import NOBODY
from vertumnusd.control.prefix_trie import PrefixTrie
from vertumnusd.control.run_table import NONE


def live_runs(tree: BlockRuns) -> list[int]:
    return [run for run in tree.runs.rows() if tree.runs.stop[run] > tree.runs.start[run]]


def check(tree: BlockRuns) -> None:
    runs, live = tree.runs, live_runs(tree)
    assert len(live) == len(runs)
    hung: Counter[int] = Counter()
    for run in live:
        start, stop, up = runs.start[run], runs.stop[run], runs.up[run]
        assert all(tree.run_of[node] == run for node in range(start, stop))
        assert all(tree.run_of[node] == GONE for node in range(stop, runs.room[run]))
        if up == NONE:
            assert runs.depth[run] == 0
        else:
            parent = tree.run_of[up]
            assert runs.stop[parent] == up + 1
            assert runs.depth[run] == tree.depth(up) + 1
            ahead = runs.stop[parent] - runs.start[parent]
            assert runs.lane[run] == (runs.lane[parent] + ahead) % tree.home_ranks
            assert run in list(runs.children(parent))
            hung[parent] += 1
    assert all(len(list(runs.children(run))) == hung[run] for run in live)
    assert tree.blocks == sum(run != GONE for run in tree.run_of)
    for node, run in enumerate(tree.run_of):
        if run != GONE:
            words = tree.names[2 * node], tree.names[2 * node + 1]
            assert tree.index.find_any(*words) == node
            if node == runs.start[run]:
                assert tree.index.find(*words) == node
    kinds = {runs.holders[run] for run in live}
    assert len(tree.holders) == len(kinds | {NOBODY})


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("home_ranks", [1, 2, 4])
def test_the_tree_is_whole_after_any_change(home_ranks, seed):
    choose = random.Random(seed)
    trie = PrefixTrie(4, home_ranks)
    homes = [Home(trie, home, home_ranks) for home in range(0, 4, home_ranks)]
    for _ in range(40):
        home = choose.choice(homes)
        path = "".join(choose.choices("ab", k=choose.randrange(1, 12)))
        if choose.random() < 0.1:
            reporter = choose.choice(home.reporters)
            trie.drop_rank(reporter.rank)
            reporter.version = 0
        elif choose.random() < 0.5:
            home.store(path)
        else:
            home.evict(path, behind=choose.randrange(len(path)))
        check(trie.tree)


def stored(*paths: str) -> PrefixTrie:
    """Each rank stores one path."""
    trie = PrefixTrie(len(paths), home_ranks=1)
    for rank, path in enumerate(paths):
        Reporter(trie, rank).report(stored=prefixes(path))
    return trie


def test_a_chain_with_the_same_holders_is_one_run():
    assert len(stored("abcdefgh").tree.runs) == 1
    assert len(stored("abcdefgh", "abcdefgh").tree.runs) == 1


def test_a_chain_that_alternates_between_the_ranks_of_a_home_is_one_run():
    trie = PrefixTrie(4, home_ranks=4)
    Home(trie, 0, 4).store("abcdefghijkl")
    assert len(trie.tree.runs) == 1


def test_a_run_is_cut_where_holders_change_and_where_chains_part():
    trie = stored("abcdef", "abcd", "abx")
    pieces = {trie.tree.name(trie.tree.runs.start[run]) for run in live_runs(trie.tree)}
    assert pieces == {name("a"), name("abc"), name("abcde"), name("abx")}


def test_runs_join_when_they_come_to_have_the_same_holders():
    trie = stored("abcdef", "abcd")
    assert len(trie.tree.runs) == 2
    trie.drop_rank(1)
    assert len(trie.tree.runs) == 1
    Reporter(trie, 1).report(stored=prefixes("abcdef"))
    assert len(trie.tree.runs) == 1


def test_eviction_from_the_end_moves_the_border_between_two_runs():
    trie = PrefixTrie(ranks=2, home_ranks=1)
    Reporter(trie, 0).report(stored=prefixes("abcdef"))
    second = Reporter(trie, 1)
    second.report(stored=prefixes("abcdef"))
    for last in ("abcdef", "abcde", "abcd"):
        second.report(evicted=[last])
        assert len(trie.tree.runs) == 2
    assert trie.match(chain("abcdef")) == {0: 6, 1: 3}


def test_a_chain_longer_than_any_stretch_of_numbers_is_stored_whole():
    path = "a" * 10_000
    trie = stored("b", path)
    assert trie.match(chain(path + "b")) == {1: 10_000}
    check(trie.tree)
