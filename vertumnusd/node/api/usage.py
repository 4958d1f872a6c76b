"""How many tokens an answer took, as the two families of endpoints write it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vertumnusd.messages import Finished
from vertumnusd.node.generation import Outcome


def completion_usage(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """``usage`` of /v1/completions and /v1/chat/completions, summed over the choices."""
    ends = [outcome.finished for outcome in outcomes]
    prompt = sum(end.input_tokens for end in ends)
    completion = sum(end.output_tokens for end in ends)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(end.cached_tokens for end in ends)},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def response_usage(finished: Finished) -> dict[str, Any]:
    """``usage`` of a Response. What was written to a cache is not reported to the doors."""
    return {
        "input_tokens": finished.input_tokens,
        "input_tokens_details": {
            "cached_tokens": finished.cached_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": finished.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": finished.input_tokens + finished.output_tokens,
    }


def finish_reason(outcome: Outcome) -> str:
    """A prompt that was only prefilled ended at the length that was asked for."""
    return "stop" if outcome.finished.reason == "stop" else "length"
