"""A prefix of 4,096 tokens fetched from another worker, against computing it again.

Two workers of one rank. The one that has the prefix is kept busy by a longer request with the same
prefix; then a request comes that has it too (placement fetches it to the other worker), or one with
a prefix that nobody has, which is computed there. TTFT is what the client sees, from sending to the
first token; the copy is a part of it. Both kinds take turns in one run. Target: at most half of it.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from harness import DOCUMENT, Answer, Client, ask, daemon, median, result, say

ROUNDS = 3
PREFIX_WORDS = 3060  # about 4,096 tokens
BUSY_WORDS = 600  # more, for the worker that has the prefix

CONFIG = {
    "cluster": {"ranks": 2, "cp_degrees": [1], "composition": "2CP1"},
    "adaptation": {"automatic": False},
    "replication": {"enabled": False},
}
WORDS = (DOCUMENT.split(" ") * 3)[: PREFIX_WORDS + BUSY_WORDS]


def prefix(name: str) -> str:
    return f"{name}. " + " ".join(WORDS[:PREFIX_WORDS])


def beside_a_busy_holder(client: Client, port: int, held: str, prompt: str) -> tuple[Answer, bool]:
    """Answer to the prompt, sent while the worker that has ``held`` computes; and whether it was
    answered elsewhere."""
    busy = f"{held} At length: {' '.join(WORDS[PREFIX_WORDS:])}"
    with ThreadPoolExecutor(1) as pool:
        other: Future[Answer] = pool.submit(ask, port, busy)
        while not client.get("/v1/cluster")["requests"]:
            pass
        answer = client.complete(prompt)
        return answer, other.result().facts["worker"] != answer.facts["worker"]


def main() -> None:
    fetched, computed = [], []
    with daemon(**CONFIG) as node, Client(node.port) as client:
        client.complete("Warm up.")
        for n in range(ROUNDS):
            held = prefix(f"Held {n}")
            client.complete(held)
            for kind, times in (("Held", fetched), ("Fresh", computed)):
                prompt = f"{prefix(f'{kind} {n}')} Briefly:"
                answer, elsewhere = beside_a_busy_holder(client, node.port, held, prompt)
                assert elsewhere, "the holder answered itself"
                assert (answer.cached_tokens > 0) == (times is fetched), answer
                times.append(answer.first_token_s)
                say(
                    f"{kind}: {answer.cached_tokens} of {answer.input_tokens} tokens cached,"
                    f" TTFT {answer.first_token_s:.2f} s"
                )
    result(
        prefix_tokens=answer.input_tokens,
        computed_ttft_s=round(median(computed), 3),
        fetched_ttft_s=round(median(fetched), 3),
        target=0.5,
        ratio=round(median(fetched) / median(computed), 3),
    )


if __name__ == "__main__":
    main()
