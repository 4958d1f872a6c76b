"""Prefill of a 6,000-token document: degree 2 on two cores against degree 1 on one.

Each round prefills a document that no cache has seen on a worker of either degree; the medians of
the prefill times, as the ranks report them, make the ratio. Target: 1.7 or more.
"""

from __future__ import annotations

from harness import DOCUMENT, Client, daemon, median, result, say

ROUNDS = 3


def prefill_s(degree: int) -> tuple[float, int]:
    cluster = {"ranks": 2, "cp_degrees": [1, 2], "composition": f"{2 // degree}CP{degree}"}
    times, tokens = [], 0
    with daemon(cluster=cluster) as node:
        client = Client(node.port)
        client.complete("Warm up.")
        for i in range(ROUNDS):
            answer = client.complete(f"Copy {i}. {DOCUMENT}")
            assert answer.cached_tokens == 0
            assert answer.facts["degree"] == degree
            times.append(answer.facts["prefill_s"])
            tokens = answer.input_tokens
            say(f"degree {degree}: {tokens} tokens in {times[-1]:.2f} s")
    return median(times), tokens


one_s, tokens = prefill_s(1)
two_s, _ = prefill_s(2)
result(input_tokens=tokens, degree_1_s=one_s, degree_2_s=two_s, target=1.7, ratio=one_s / two_s)
