"""Paced ranks: real processes that take the profile's time, and whose answers can be checked."""

from __future__ import annotations

import subprocess
import sys
from array import array

import pytest
from harness import Client, ask_at_once, daemon

from vertumnusd.config import ModelConfig, load_profile
from vertumnusd.messages import DegreePace, Pace
from vertumnusd.rank.paced import checksum, next_token

CLUSTER = {"ranks": 4, "cp_degrees": [1, 2, 4], "composition": "1CP2/2CP1"}
CACHE = {"block_tokens": 16, "kv_tokens": 65536, "decode_kv_tokens": 65536}
PACED = {"device": "paced", "pace": 0.2, "step_s": 0.005}


def answer(tokens: list[int], count: int) -> str:
    """What the dummy model says after these tokens."""
    told = list(tokens)
    for _ in range(count):
        told.append(next_token(checksum(array("I", told).tobytes())))
    return bytes(told[len(tokens) :]).decode()


def test_the_pace_is_the_prediction() -> None:
    times, _ = load_profile(ModelConfig(profile="q3"), "")
    degrees = (1, 2, 4, 8)
    fields = DegreePace.__struct_fields__
    pace = Pace(
        {
            d: DegreePace(*(getattr(times.by_degree.get(d, times.shared), f) for f in fields))
            for d in degrees
        },
        0.0,
    )
    for degree in degrees:
        for uncached, cached in ((1, 0), (17, 512), (4096, 0), (65536, 1024)):
            expected = times.predict_s(degree, uncached, cached)
            assert pace.prefill_s(degree, uncached, cached) == pytest.approx(expected, rel=1e-12)


def test_a_paced_rank_imports_no_torch() -> None:
    code = "import sys; import vertumnusd.rank.paced; print('torch' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert printed.stdout == "False\n"


@pytest.mark.ranks
def test_answers_are_right_at_every_length_hit_degree_and_geometry() -> None:
    model = {"profile": "q3", "name": "paced"}
    with (
        daemon(model=model, cluster=CLUSTER, cache=CACHE, rank=PACED) as node,
        Client(node.port) as client,
    ):
        for length in (1, 15, 16, 17, 33, 400, 3000):
            tokens = [(length + 7 * i) % 256 for i in range(length)]
            for _ in range(2):
                assert client.complete(tokens, 20).text == answer(tokens, 20)
        prompts = [f"{n % 3} shared by some, " * 40 + str(n) for n in range(12)]
        texts = [each.text for each in ask_at_once(node.port, prompts, 9)]
        assert texts == [answer(list(prompt.encode()), 9) for prompt in prompts]
