"""Shares of a chain, put together from the reports of a home's ranks."""

from __future__ import annotations

from trie_chains import Home, Reporter, chain, name, owner_of, prefixes

from vertumnusd.control.home_shares import Chain, HomeShares, Share, interleaved
from vertumnusd.control.prefix_trie import PrefixTrie


def share(rank: int, *paths: str) -> Share:
    return Share(rank, b"".join(name(path[:-1]) + name(path) for path in paths))


def waiting(*shares: Share) -> HomeShares:
    waiting = HomeShares(home_ranks=2)
    for each in shares:
        waiting.add(each)
    return waiting


def has(*paths: str):
    return lambda home, block: block in {name(path) for path in ("", *paths)}


def test_shares_in_turn_make_a_chain():
    assert interleaved([share(0, "a", "abc"), share(1, "ab")]) == chain("abc")
    assert interleaved([share(0, "a", "abc"), share(1, "ab", "abcd")]) == chain("abcd")


def test_shares_that_do_not_fit_make_none():
    assert interleaved([share(0, "a", "abc"), share(1, "ab", "abxd")]) is None
    assert interleaved([share(0, "a"), share(1, "ab", "abcd")]) is None


def test_the_whole_chain_is_taken_when_all_shares_are_there():
    shares = waiting(share(3, "ab", "abcd"), share(2, "a", "abc"))
    assert shares.take(2, has()) == Chain(1 << 2 | 1 << 3, name(""), chain("abcd"))
    assert shares.take(2, has()) is None
    assert len(shares) == 0


def test_the_first_block_does_not_wait_for_the_others():
    shares = waiting(share(2, "a", "abc"))
    assert shares.take(2, has()) == Chain(1 << 2, name(""), name("a"))
    assert shares.take(2, has("a")) is None
    assert len(shares) == 1
    assert shares.take(2, has("a", "ab")) == Chain(1 << 2, name("ab"), name("abc"))


def test_what_does_not_fit_comes_back_as_it_is():
    wrong = share(3, "ab", "axyd")
    shares = waiting(share(2, "a", "abc"), wrong)
    assert shares.take(2, has()) == [share(2, "a", "abc"), wrong]
    assert not shares.waits(2)


def test_a_share_waits_no_more_when_all_ranks_of_its_home_have_reported():
    shares = waiting(share(2, "abc"))
    assert shares.heard_of(2) == []
    assert shares.heard_of(0) == []  # of another home
    assert shares.heard_of(3) == [share(2, "abc")]
    assert not shares.waits(2)


# --- in the trie


def test_a_rank_that_stores_again_what_it_lost_waits_for_nobody():
    trie = PrefixTrie(ranks=2, home_ranks=2)
    home = Home(trie, 0, 2)
    home.store("abcdef")
    lost = owner_of("a", 0, 2)
    again = home.reporters[lost]
    again.report(evicted=["abcde", "abc", "a"])
    assert trie.match(chain("abcdef")) == {}
    again.report(stored=["a", "abc", "abcde"])
    assert trie.match(chain("abcdef")) == {0: 6}


def test_a_block_that_is_evicted_while_its_share_waits_is_not_claimed():
    trie = PrefixTrie(ranks=2, home_ranks=2)
    home = Home(trie, 0, 2)
    first, second = (home.reporters[owner_of(path, 0, 2)] for path in ("a", "ab"))
    first.report(stored=["a", "abc", "abcde"])
    first.report(evicted=["abcde"])
    second.report(stored=["ab", "abcd"])
    assert trie.match(chain("abcde")) == {0: 4}


def test_chains_that_part_in_one_report_are_told_apart():
    trie = PrefixTrie(ranks=2, home_ranks=2)
    home = Home(trie, 0, 2)
    for reporter in home.reporters:
        blocks = [*prefixes("abcd"), *prefixes("abxy")[2:]]
        reporter.report(stored=[b for b in blocks if owner_of(b, 0, 2) == reporter.rank])
    assert trie.match(chain("abcd")) == {0: 4}
    assert trie.match(chain("abxy")) == {0: 4}


def test_a_share_of_a_lost_rank_is_forgotten():
    trie = PrefixTrie(ranks=2, home_ranks=2)
    second = owner_of("ab", 0, 2)
    Reporter(trie, second).report(stored=["ab", "abcd"])
    trie.drop_rank(second)
    assert len(trie) == 0
    Reporter(trie, 1 - second).report(stored=["a", "abc"])
    assert trie.match(chain("abcd")) == {0: 1}
