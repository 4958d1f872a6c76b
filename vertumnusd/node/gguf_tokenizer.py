"""A ``tokenizers.Tokenizer`` out of the metadata of a GGUF file.

GGUF keeps vocabulary, merges and token types; how text is cut before the merges apply is only named
(``tokenizer.ggml.pre``), so each name needs its rule here. An unknown one is refused: a wrong rule
would give plausible but different ids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

CONTROL, USER_DEFINED = 3, 4

# The cuts of cl100k, taken over by Qwen and Llama 3; they differ in how many digits stay together.
_CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class TokenizerError(Exception):
    """The checkpoint's tokenizer cannot be used; the message says why."""


def tokenizer_from_gguf(metadata: dict[str, Any]) -> Tokenizer:
    """Raises :class:`TokenizerError` for what this builder does not know exactly."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise TokenizerError(f"tokenizer model {kind!r}; only byte-level BPE ('gpt2') is supported")
    pre = metadata.get("tokenizer.ggml.pre")
    if pre not in _PRE_TOKENIZERS:
        known = ", ".join(_PRE_TOKENIZERS)
        raise TokenizerError(f"pre-tokenizer {pre!r}; supported are {known}")
    try:
        tokens: list[str] = metadata["tokenizer.ggml.tokens"]
        types: list[int] = metadata["tokenizer.ggml.token_type"]
        merges = [_pair(merge) for merge in metadata["tokenizer.ggml.merges"]]
    except KeyError as error:
        raise TokenizerError(f"{error.args[0]} is missing") from error
    vocab = {token: id for id, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocab, merges, ignore_merges=pre == "llama-bpe"))
    _PRE_TOKENIZERS[pre](tokenizer)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(_added(tokens, types, CONTROL, special=True))
    tokenizer.add_tokens(_added(tokens, types, USER_DEFINED, special=False))
    return tokenizer


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _added(tokens: list[str], types: list[int], kind: int, *, special: bool) -> list[AddedToken]:
    return [
        AddedToken(token, normalized=False, special=special)
        for token, type_ in zip(tokens, types, strict=True)
        if type_ == kind
    ]


def _cut_smollm(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )


def _cut_qwen2(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _split_by(_CL100K.replace("DIGITS", r"\p{N}"))


def _cut_llama3(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = _split_by(_CL100K.replace("DIGITS", r"\p{N}{1,3}"))


def _split_by(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


_PRE_TOKENIZERS: dict[str, Callable[[Tokenizer], None]] = {
    "smollm": _cut_smollm,
    "qwen2": _cut_qwen2,
    "llama-bpe": _cut_llama3,
}
