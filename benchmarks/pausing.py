"""Time to first token of short requests that arrive while a long prefill runs, pausing on and off.

A node that pauses long prefills and one that does not take turns, each fresh. Half a second after a
long prompt two short ones come, the second after the first was answered. The ratio is the median
time of these without pausing over that with it; what the long one pays is printed beside it.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from harness import DOCUMENT, ask, daemon, result, say

ROUNDS = 2
SHORTS = 2
AHEAD_S = 0.5
LONG = DOCUMENT


def measure(max_paused: int) -> tuple[list[float], float]:
    """Seconds to the first token of each short request, and of the long one."""
    with daemon(rank={"max_paused": max_paused}) as node, ThreadPoolExecutor(1) as other:
        ask(node.port, "Warm up.")
        long = other.submit(ask, node.port, LONG)
        time.sleep(AHEAD_S)
        shorts = [ask(node.port, f"{n} and {n} is").first_token_s for n in range(SHORTS)]
        return shorts, long.result().first_token_s


def main() -> None:
    short_s: dict[int, list[float]] = {0: [], 4: []}
    long_s: dict[int, list[float]] = {0: [], 4: []}
    for _ in range(ROUNDS):
        for max_paused in short_s:
            shorts, long = measure(max_paused)
            say(f"max_paused {max_paused}: short {median(shorts):.2f} s, long {long:.2f} s")
            short_s[max_paused] += shorts
            long_s[max_paused].append(long)
    # Without pausing only the first of them waits; the second finds the node free.
    waiting_s, pausing_s = median(short_s[0][::SHORTS]), median(short_s[4])
    result(
        short_s={"waiting": waiting_s, "pausing": pausing_s},
        long_s={"waiting": median(long_s[0]), "pausing": median(long_s[4])},
        target=5.0,
        ratio=waiting_s / pausing_s,
    )


if __name__ == "__main__":
    main()
