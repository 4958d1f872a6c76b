"""Logits of the engine against transformers on the same GGUF file, for real text.

Every prompt runs at degree 1 and 2, cold and behind a cached prefix of about four fifths. The error
is the largest difference relative to the largest |logit|; the ratio is it over the bound of 1e-5,
so below 1 is right. Greedy next tokens must be equal everywhere.
"""

from __future__ import annotations

import numpy as np
import torch
from engine_ranks import EngineRanks, Shape, engine_ranks
from gguf_oracle import gguf_oracle, gguf_tokenizer, last_logits, logits_error
from harness import DOCUMENT, result, say

from vertumnusd.checkpoint import resolve

BOUND = 1e-5
BLOCK = 16
LENGTHS = (1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 48, 64, 65, 100, 129, 200, 257, 333, 512, 700)
LONG = (1000, 1500, 2047, 3000)


def compare(engine: EngineRanks, tokens: list[int], wanted: np.ndarray) -> tuple[float, bool]:
    """The worst error of the prompt's cases, and whether all agree on the next token."""
    found = []
    cached = len(tokens) * 4 // 5 // BLOCK * BLOCK
    for degree in (1, 2):
        engine.adopt(degree)
        logits, chain = engine.prefill(tokens)
        found.append(logits)
        if cached:
            found.append(engine.prefill(tokens, chain, cached)[0])
    agree = all(logits.argmax() == wanted.argmax() for logits in found)
    return max(logits_error(logits, wanted) for logits in found), agree


def main() -> None:
    torch.set_num_threads(1)
    path = resolve("SmolLM2-135M-Instruct")
    say("loading transformers' model from the GGUF file")
    oracle = gguf_oracle(path)
    text = gguf_tokenizer(path)(DOCUMENT)["input_ids"]
    shape = Shape(2, (1, 2), block_tokens=BLOCK, kv_blocks=1024, exchange_tokens=max(LONG))
    errors, agreed = [], True
    with engine_ranks(path, shape) as engine:
        for number, length in enumerate((*LENGTHS, *LONG)):
            start = 37 * number
            tokens = text[start : start + length]
            assert len(tokens) == length
            error, agree = compare(engine, tokens, last_logits(oracle, tokens))
            errors.append(error)
            agreed = agreed and agree
            say(f"{length} tokens: error {error:.1e}, next token {'equal' if agree else 'DIFFERS'}")
    result(
        prompts=len(errors),
        max_rel_logit_error=max(errors),
        bound=BOUND,
        tokens_equal=agreed,
        ratio=max(errors) / BOUND,
    )


if __name__ == "__main__":
    main()
