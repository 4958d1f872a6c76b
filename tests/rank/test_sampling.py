"""Sampling: the right distribution, and the same draw for the same seed and position."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from vertumnusd.messages import Sampling
from vertumnusd.rank.sampling import LIKELY_TOKENS, draw, uniform

pytestmark = pytest.mark.ranks

# Probabilities 0.5, 0.3, 0.15, 0.05, in shuffled order.
LOGITS = torch.tensor([0.15, 0.5, 0.05, 0.3]).log()
DRAWS = 4000


def draws(sampling: Sampling) -> Counter[int]:
    return Counter(draw(LOGITS, sampling, position) for position in range(DRAWS))


def test_greedy_takes_the_largest_logit() -> None:
    assert draw(LOGITS, Sampling(), position=7) == 1


def test_frequencies_follow_the_probabilities() -> None:
    counts = draws(Sampling(temperature=1.0, seed=3))
    for token, probability in enumerate((0.15, 0.5, 0.05, 0.3)):
        assert abs(counts[token] / DRAWS - probability) < 0.03


def test_temperature_sharpens() -> None:
    # Squaring 0.5, 0.3, 0.15, 0.05 and scaling to 1 gives the first 0.25 / 0.365.
    counts = draws(Sampling(temperature=0.5, seed=3))
    assert abs(counts[1] / DRAWS - 0.25 / 0.365) < 0.03


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    assert set(draws(Sampling(temperature=1.0, top_p=0.79, seed=5))) == {1, 3}
    assert set(draws(Sampling(temperature=1.0, top_p=0.81, seed=5))) == {0, 1, 3}


def test_top_p_reaches_beyond_the_likely_tokens() -> None:
    flat = torch.zeros(4 * LIKELY_TOKENS)
    sampling = Sampling(temperature=1.0, top_p=0.75, seed=5)
    seen = {draw(flat, sampling, position) for position in range(DRAWS)}
    assert 2 * LIKELY_TOKENS < len(seen) <= 3 * LIKELY_TOKENS


def test_top_p_zero_is_greedy() -> None:
    assert set(draws(Sampling(temperature=1.0, top_p=0.0, seed=5))) == {1}


def test_same_seed_same_stream_from_any_position_on() -> None:
    sampling = Sampling(temperature=1.0, seed=11)
    whole = [draw(LOGITS, sampling, position) for position in range(50)]
    resumed = [draw(LOGITS, sampling, position) for position in range(20, 50)]
    assert resumed == whole[20:]


def test_another_seed_gives_another_stream() -> None:
    first, second = (
        [draw(LOGITS, Sampling(temperature=1.0, seed=seed), n) for n in range(50)]
        for seed in (1, 2)
    )
    assert first != second


def test_any_integer_is_a_seed() -> None:
    assert 0 <= uniform(-1, 0) < 1
    assert 0 <= uniform(2**70, 0) < 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_refused(bad: float, temperature: float) -> None:
    with pytest.raises(FloatingPointError):
        draw(torch.tensor([0.0, bad]), Sampling(temperature=temperature), position=0)


def test_a_tiny_temperature_is_greedy_and_does_not_overflow() -> None:
    assert set(draws(Sampling(temperature=1e-9, seed=1))) == {1}
