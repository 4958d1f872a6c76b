"""The prefix trie against a naive model, and its rules one by one."""

from __future__ import annotations

import random

import pytest
from trie_chains import Home, Reporter, chain, name, owner_of, prefixes

from vertumnusd.control.errors import IllegalEvent
from vertumnusd.control.prefix_trie import PrefixTrie
from vertumnusd.messages import BlocksChanged, BlocksHeld


def match(trie: PrefixTrie, path: str) -> dict[int, int]:
    return trie.match(chain(path))


def test_the_longest_prefix_of_each_home_is_found():
    trie = PrefixTrie(ranks=3, home_ranks=1)
    Reporter(trie, 0).report(stored=prefixes("abc"))
    Reporter(trie, 1).report(stored=prefixes("abxy"))
    assert match(trie, "abcd") == {0: 3, 1: 2}
    assert match(trie, "abxyz") == {0: 2, 1: 4}
    assert match(trie, "zab") == {}
    assert match(trie, "") == {}


def test_a_whole_chain_matches_to_its_end():
    trie = PrefixTrie(ranks=2, home_ranks=1)
    Reporter(trie, 1).report(stored=prefixes("abc"))
    assert match(trie, "abc") == {1: 3}
    assert match(trie, "ab") == {1: 2}


def test_homes_are_told_apart_by_where_their_prefixes_end():
    trie = PrefixTrie(ranks=4, home_ranks=1)
    for rank, path in enumerate(["abcd", "ab", "abcd", "xy"]):
        Reporter(trie, rank).report(stored=prefixes(path))
    assert trie.prefixes(chain("abcdef")) == [(1 << 1, 2), (1 << 0 | 1 << 2, 4)]


@pytest.mark.patches
def test_a_chain_that_grew_block_by_block_is_walked_in_few_steps(monkeypatch):
    trie = PrefixTrie(ranks=1, home_ranks=1)
    rank = Reporter(trie, 0)
    path = "a" * 1000
    for block in prefixes(path):
        rank.report(stored=[block])
        rank.report(stored=[chr(1000 + len(block))])  # takes a number in between
    asked = []
    find = trie.tree.index.find
    monkeypatch.setattr(trie.tree.index, "find", lambda *words: asked.append(1) or find(*words))
    assert match(trie, path) == {0: 1000}
    assert len(asked) <= 12


def test_a_home_of_two_ranks_has_what_its_owners_report():
    trie = PrefixTrie(ranks=4, home_ranks=2)
    first = owner_of("a", 2, 2)
    second = 5 - first
    Reporter(trie, second).report(stored=["ab", "abcd"])
    assert match(trie, "abcd") == {}  # the first block is its neighbour's
    Reporter(trie, first).report(stored=["a"])
    assert match(trie, "abcd") == {2: 2}


def test_a_rank_does_not_hold_blocks_that_its_neighbour_owns():
    trie = PrefixTrie(ranks=2, home_ranks=2)
    stranger = Reporter(trie, 1 - owner_of("a", 0, 2))
    stranger.report(stored=["a"])
    assert match(trie, "a") == {}
    assert len(trie) == 0


def test_the_ranks_of_a_home_report_in_any_order():
    for order in ([0, 1], [1, 0]):
        trie = PrefixTrie(ranks=4, home_ranks=2)
        home = Home(trie, 2, 2)
        home.reporters = [home.reporters[index] for index in order]
        home.store("abcdefgh")
        assert match(trie, "abcdefghi") == {2: 8}


def test_a_block_without_its_parent_counts_when_the_parent_is_back():
    trie = PrefixTrie(ranks=1, home_ranks=1)
    rank = Reporter(trie, 0)
    rank.report(stored=prefixes("abc"))
    rank.report(evicted=["ab"])
    assert match(trie, "abc") == {0: 1}
    rank.report(stored=["ab"])
    assert match(trie, "abc") == {0: 3}


def test_a_block_whose_parent_was_never_reported_waits_for_it():
    trie = PrefixTrie(ranks=2, home_ranks=1)
    rank = Reporter(trie, 0)
    rank.report(stored=["abc", "abcd", "abd"])
    assert match(trie, "abcd") == {}
    rank.report(stored=["a", "ab"])
    assert match(trie, "abcd") == {0: 4}
    assert match(trie, "abd") == {0: 3}


def test_blocks_that_nobody_holds_take_no_memory():
    trie = PrefixTrie(ranks=2, home_ranks=1)
    first, second = Reporter(trie, 0), Reporter(trie, 1)
    first.report(stored=prefixes("abc"))
    second.report(stored=prefixes("ab"))
    first.report(evicted=prefixes("abc"))
    assert len(trie) == 2
    trie.drop_rank(1)
    assert len(trie) == 0


def test_a_block_that_waits_can_be_evicted():
    trie = PrefixTrie(ranks=1, home_ranks=1)
    rank = Reporter(trie, 0)
    rank.report(stored=["abc", "abd"])
    rank.report(evicted=["abc"])
    rank.report(stored=["a", "ab"])
    assert match(trie, "abc") == {0: 2}
    assert match(trie, "abd") == {0: 3}


def test_an_inner_block_that_nobody_holds_goes_with_the_last_behind_it():
    trie = PrefixTrie(ranks=1, home_ranks=1)
    rank = Reporter(trie, 0)
    rank.report(stored=prefixes("abc"))
    rank.report(evicted=["ab", "a"])
    assert len(trie) == 3
    rank.report(evicted=["abc"])
    assert len(trie) == 0


def test_a_lost_rank_is_forgotten_alone_and_starts_again_at_version_1():
    trie = PrefixTrie(ranks=2, home_ranks=1)
    for rank in (0, 1):
        Reporter(trie, rank).report(stored=prefixes("ab"))
    trie.drop_rank(0)
    assert match(trie, "ab") == {1: 2}
    assert Reporter(trie, 0).report(stored=["a"]) == 0
    assert match(trie, "ab") == {0: 1, 1: 2}


def test_what_the_other_rank_of_a_home_holds_is_remembered_when_one_is_lost():
    trie = PrefixTrie(ranks=2, home_ranks=2)
    home = Home(trie, 0, 2)
    home.store("abcd")
    lost = owner_of("ab", 0, 2)
    trie.drop_rank(lost)
    assert match(trie, "abcd") == {0: 1}
    Reporter(trie, lost).report(stored=["ab"])
    assert match(trie, "abcd") == {0: 3}


def test_after_a_loss_memory_comes_back_with_the_next_updates():
    trie = PrefixTrie(ranks=2, home_ranks=1)
    lost, kept = Reporter(trie, 0), Reporter(trie, 1)
    for number in range(1000):
        lost.report(stored=prefixes(chr(1000 + number) + "ab"))
    trie.drop_rank(0)
    assert match(trie, chr(1500) + "ab") == {}
    for _ in range(10):
        kept.report()
    assert len(trie) == 0


def test_a_repeated_report_is_ignored():
    trie = PrefixTrie(ranks=1, home_ranks=1)
    rank = Reporter(trie, 0)
    rank.report(stored=["a"])
    rank.report(evicted=["a"])
    rank.version = 0
    assert rank.report(stored=["a"]) == -2
    assert match(trie, "a") == {}


def test_after_a_gap_only_what_is_reported_since_is_claimed():
    trie = PrefixTrie(ranks=1, home_ranks=1)
    rank = Reporter(trie, 0)
    rank.report(stored=prefixes("abc"))
    rank.version += 2  # two reports went missing: they may have evicted anything
    assert rank.report(stored=prefixes("xy")) == 2
    assert match(trie, "abc") == {}
    assert match(trie, "xy") == {0: 2}
    assert rank.report(stored=["a"]) == 0


def test_evicting_what_was_never_reported_changes_nothing():
    trie = PrefixTrie(ranks=2, home_ranks=1)
    Reporter(trie, 0).report(stored=["a"])
    Reporter(trie, 1).report(evicted=["a", "b"])
    assert match(trie, "a") == {0: 1}


@pytest.mark.parametrize(("stored", "evicted"), [(b"x" * 31, b""), (b"", b"x" * 17)])
def test_a_torn_report_is_illegal_and_changes_nothing(stored, evicted):
    trie = PrefixTrie(ranks=1, home_ranks=1)
    with pytest.raises(IllegalEvent, match="odd length"):
        trie.apply(BlocksChanged(0, 1, stored, evicted, 0, 0, 0))
    assert Reporter(trie, 0).report(stored=["a"]) == 0


def test_a_node_knows_its_path_its_holders_and_what_follows():
    trie = PrefixTrie(ranks=3, home_ranks=1)
    Reporter(trie, 0).report(stored=prefixes("abc"))
    Reporter(trie, 1).report(stored=[*prefixes("ab"), "abx"])
    Reporter(trie, 2).report(stored=["ab"])  # without its parent
    tree, node = trie.tree, trie.node(name("ab"))
    assert node is not None
    assert tree.name(node) == name("ab")
    assert tree.depth(node) == 1
    assert tree.homes_at(node) == 0b011
    assert tree.ranks_at(node) == 0b111
    assert {tree.name(child) for child in tree.children(node)} == {name("abc"), name("abx")}
    assert tree.name(tree.parent(node)) == name("a")
    assert tree.parent(tree.parent(node)) == -1
    assert trie.node(name("zz")) is None


def test_a_number_stays_with_its_block_when_holders_come_and_go():
    trie = PrefixTrie(ranks=3, home_ranks=1)
    Reporter(trie, 0).report(stored=prefixes("abcdef"))
    before = [trie.node(name(path)) for path in prefixes("abcdef")]
    second = Reporter(trie, 1)
    second.report(stored=prefixes("abcd"))
    second.report(stored=["abx"], evicted=["abcd"])
    trie.drop_rank(0)
    assert [trie.node(name(path)) for path in prefixes("abc")] == before[:3]


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("home_ranks", [1, 2, 4])
def test_it_agrees_with_a_naive_model(home_ranks, seed):
    """Random stores, evictions and losses, in any order; the model keeps a set for each rank."""
    choose = random.Random(seed)
    ranks = 8
    trie = PrefixTrie(ranks, home_ranks)
    reporters = [Reporter(trie, rank) for rank in range(ranks)]
    model: list[set[str]] = [set() for _ in range(ranks)]
    for _ in range(80):
        rank = choose.randrange(ranks)
        if choose.random() < 0.05:
            trie.drop_rank(rank)
            reporters[rank], model[rank] = Reporter(trie, rank), set()
            continue
        home = rank - rank % home_ranks
        path = "".join(choose.choices("ab", k=choose.randrange(1, 12)))
        complete = choose.random() < 0.6
        for member in choose.sample(range(home, home + home_ranks), home_ranks):
            mine = [p for p in prefixes(path) if owner_of(p, home, home_ranks) == member]
            stored = [p for p in mine if complete or choose.random() < 0.7]
            held = sorted(model[member] - set(stored))
            evicted = choose.sample(held, min(len(held), choose.choice((0, 0, 1, 8))))
            reporters[member].report(stored, evicted)
            model[member] = (model[member] | set(stored)) - set(evicted)
        probe = "".join(choose.choices("ab", k=choose.randrange(14)))
        assert match(trie, probe) == naive_match(model, home_ranks, probe)
    for rank, held in enumerate(model):
        reporters[rank].report(evicted=sorted(held))
    assert len(trie) == 0


def naive_match(model: list[set[str]], home_ranks: int, path: str) -> dict[int, int]:
    lengths = {}
    for home in range(0, len(model), home_ranks):
        length = 0
        while length < len(path):
            block = path[: length + 1]
            if block not in model[owner_of(block, home, home_ranks)]:
                break
            length += 1
        if length:
            lengths[home] = length
    return lengths


@pytest.mark.parametrize("home_ranks", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_a_chain_on_a_span_is_whole_there_and_in_pieces_in_its_homes(home_ranks, seed):
    """The ranks of the span report in any order; what one evicts ends the prefix."""
    trie, path = PrefixTrie(ranks=4, home_ranks=home_ranks), "abcdefghij"
    ranks = [Reporter(trie, rank) for rank in range(4)]
    for rank in random.Random(seed).sample(ranks, 4):
        owned = [each for each in prefixes(path) if owner_of(each, 0, 4) == rank.rank]
        rank.report(stored=owned)
    assert trie.span_prefix(chain(path), 0, 4) == 10
    assert trie.span_prefix(chain(path + "k"), 0, 4) == 10
    assert max(match(trie, path).values(), default=0) <= home_ranks
    assert trie.span_prefix(chain(path), 0, 2) <= 2
    ranks[owner_of("abcdefg", 0, 4)].report(evicted=["abcdefg"])
    assert trie.span_prefix(chain(path), 0, 4) == 6


def test_a_full_report_replaces_what_was_known():
    trie = PrefixTrie(ranks=2, home_ranks=1)
    rank = Reporter(trie, 0)
    rank.report(stored=prefixes("abc"))
    rank.version += 1  # lost: "abc" was evicted
    assert rank.report(stored=["x"]) == 1
    assert match(trie, "ab") == {}
    pairs = b"".join(name(path[:-1]) + name(path) for path in ("a", "ab", "x"))
    trie.resync(BlocksHeld(0, 3, True, False, pairs[:32]))
    trie.resync(BlocksHeld(0, 3, False, True, pairs[32:]))
    assert (match(trie, "abc"), match(trie, "x")) == ({0: 2}, {0: 1})
    assert rank.report(stored=["abc"]) == 0
    trie.resync(BlocksHeld(0, 3, True, True, b""))  # late
    assert match(trie, "abc") == {0: 3}
