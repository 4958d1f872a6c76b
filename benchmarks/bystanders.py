"""What requests notice of splits and merges that other workers go through.

Eight paced ranks (real processes, messages and bookkeeping; only the computing is replaced by
waiting), profile q3, times 2. Ranks 4 to 7 are merged and split all the time, an order a tenth of a
second after the other; ranks 0 to 3 stay single. Requests continue prefixes that one home has each,
with copies switched off, so nearly all are served where their prefix is; those count that continue
a prefix of ranks 0 to 3 and were served there. Ranks 4 to 7 have less to do: what they cannot serve
while they are drained goes to the others, and makes these wait for more work, not for conversions.
The same arrivals are played with and without conversions, in turn, with the order of the two
changing.

The ratio is the median over these pairs of their mean TTFT with conversions over that without;
promised is 1.10 at most. A loaded machine makes both sides later; each pair is played in one
stretch, so that it meets the same load on both.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import fmean

from harness import Answer, Client, Daemon, ask, daemon, median, result, say

from vertumnusd import admin
from vertumnusd.admin_address import admin_socket_path

SINGLES = ("CP1[0]", "CP1[1]", "CP1[2]", "CP1[3]")
ROUND = (
    ("merge", ("CP1[4]", "CP1[5]", "CP1[6]", "CP1[7]")),
    ("merge", ("CP2[4-5]", "CP2[6-7]")),
    ("split", ("CP4[4-7]",)),
    ("split", ("CP2[4-5]", "CP2[6-7]")),
)
PREFIX_TOKENS, SUFFIX_TOKENS, VOCABULARY = 8_192, (128, 1_024), 256
SHARE, THEIR_SHARE = 0.4, 0.1  # of the time that ranks 0 to 3 compute, and the others
STRETCH_S, CLIENTS = 16.0, 32
PAUSE_S = 0.1  # between two orders
SECTIONS = {
    "cluster": {"ranks": 8, "cp_degrees": [1, 2, 4], "composition": "8CP1"},
    "model": {"profile": "q3"},
    "cache": {"kv_tokens": 131_072, "decode_kv_tokens": 65_536},
    "rank": {"device": "paced", "pace": 2.0},
    "placement": {"fetch": False},
    "replication": {"enabled": False},
    "adaptation": {"automatic": False},
}


@dataclass(frozen=True, slots=True)
class Request:
    """Its suffix is drawn when it is sent: no side finds what the other one has computed."""

    at_s: float
    prefix: int
    suffix_tokens: int


def tokens(dice: random.Random, count: int) -> list[int]:
    return dice.choices(range(VOCABULARY), k=count)


def spread(node: Daemon, dice: random.Random) -> tuple[list[list[int]], set[int]]:
    """A prefix at each home, and which of them ranks 0 to 3 have."""
    prefixes = [tokens(dice, PREFIX_TOKENS) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        first = list(pool.map(lambda prefix: ask(node.port, [*prefix, 0]), prefixes))
    served = [answer.facts["worker"] for answer in first]
    assert len(set(served)) == 8, f"one prefix a rank was expected, not {served}"
    return prefixes, {n for n, worker in enumerate(served) if worker in SINGLES}


def service_s(node: Daemon, prefix: list[int], dice: random.Random) -> float:
    """What a request takes that finds its prefix and an idle worker."""
    with Client(node.port) as client:
        suffixes = [tokens(dice, dice.randint(*SUFFIX_TOKENS)) for _ in range(8)]
        answers = [client.complete([*prefix, *suffix]) for suffix in suffixes]
    return fmean(answer.facts["prefill_s"] for answer in answers)


def draw(seed: int, mine: set[int], each_s: float) -> list[Request]:
    """Of all prefixes, those of ranks 0 to 3 more often; ``each_s``: what a request takes."""
    dice, at_s, drawn = random.Random(seed), 0.0, []
    weights = [SHARE if n in mine else THEIR_SHARE for n in range(8)]
    while (at_s := at_s + dice.expovariate(sum(weights) / each_s)) < STRETCH_S:
        prefix = dice.choices(range(8), weights)[0]
        drawn.append(Request(at_s, prefix, dice.randint(*SUFFIX_TOKENS)))
    return drawn


def play(node: Daemon, prefixes: Sequence[list[int]], drawn: Sequence[Request]) -> list[Answer]:
    def serve(request: Request) -> Answer:
        time.sleep(max(0.0, start + request.at_s - time.perf_counter()))
        suffix = tokens(random.Random(), request.suffix_tokens)
        return ask(node.port, [*prefixes[request.prefix], *suffix])

    start = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(serve, drawn))


def convert(node: Daemon, over: threading.Event, outcomes: list[str]) -> None:
    """Whole rounds, so that all are single again. Without a pause these would be hundreds a second:
    a worker that has nothing to finish is converted in two milliseconds."""
    operator = admin.Daemon.by_socket(admin_socket_path("", node.port))
    while not over.is_set():
        for kind, workers in ROUND:
            time.sleep(PAUSE_S)
            answer = operator.ask("POST", f"/v1/admin/{kind}", {"workers": list(workers)})
            outcomes += [each["outcome"] for each in answer["converted"]]


def play_converting(
    node: Daemon, prefixes: Sequence[list[int]], drawn: Sequence[Request], outcomes: list[str]
) -> list[Answer]:
    over = threading.Event()
    hand = threading.Thread(target=convert, args=(node, over, outcomes))
    hand.start()
    answers = play(node, prefixes, drawn)
    over.set()
    hand.join()
    return answers


@dataclass(slots=True)
class Side:
    """What was seen with conversions, or without."""

    ttfts_s: list[float] = field(default_factory=list)
    elsewhere: int = 0  # requests that were served away from their prefix

    def add(self, drawn: Sequence[Request], answers: Sequence[Answer], mine: set[int]) -> float:
        """Mean TTFT of those that count."""
        counted = [a for r, a in zip(drawn, answers, strict=True) if r.prefix in mine]
        here = [a.facts["ttft_s"] for a in counted if a.facts["worker"] in SINGLES]
        self.elsewhere += len(counted) - len(here)
        self.ttfts_s += here
        return fmean(here)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=8)
    pairs = parser.parse_args().pairs
    dice, outcomes = random.Random(1), list[str]()
    quiet, converting, ratios = Side(), Side(), []
    with daemon(**SECTIONS) as node:
        prefixes, mine = spread(node, dice)
        each_s = service_s(node, prefixes[0], dice)
        play(node, prefixes, draw(pairs, mine, each_s))  # a warm-up
        for n in range(pairs):
            drawn, means_s = draw(n, mine, each_s), dict[str, float]()
            for side in ("quiet", "converting") if n % 2 else ("converting", "quiet"):
                if side == "quiet":
                    means_s[side] = quiet.add(drawn, play(node, prefixes, drawn), mine)
                else:
                    answers = play_converting(node, prefixes, drawn, outcomes)
                    means_s[side] = converting.add(drawn, answers, mine)
            ratios.append(means_s["converting"] / means_s["quiet"])
            shown = ", ".join(f"{side} {s * 1e3:.0f} ms" for side, s in means_s.items())
            say(f"pair {n + 1} of {pairs}: {shown}; {len(outcomes)} conversions so far")
    sides = (converting, quiet)
    result(
        service_ms=round(each_s * 1e3, 1),
        requests=[len(side.ttfts_s) for side in sides],
        conversions=len(outcomes),
        rolled_back=outcomes.count("rolled back"),
        served_elsewhere=[side.elsewhere for side in sides],
        mean_ms=[round(fmean(side.ttfts_s) * 1e3, 1) for side in sides],
        median_ms=[round(median(side.ttfts_s) * 1e3, 1) for side in sides],
        pair_ratios=[round(ratio, 3) for ratio in ratios],
        ratio=round(median(ratios), 3),
    )


if __name__ == "__main__":
    main()
