"""Token ids back to text, as they come, in whole UTF-8 characters.

Byte-level vocabularies only: a token is a string of bytes, so an incremental UTF-8 decoder gives
the same text as decoding all tokens at once, at a constant cost a token.
"""

from __future__ import annotations

import codecs

from tokenizers import Tokenizer


class ByteTable:
    """The bytes that each token of a byte-level vocabulary stands for; none for control tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self._bytes = [b""] * (max(vocabulary.values(), default=-1) + 1)
        for token, id in vocabulary.items():
            self._bytes[id] = _token_bytes(token)
        for id, added in tokenizer.get_added_tokens_decoder().items():
            if added.special:
                self._bytes[id] = b""

        self.longest = max(map(len, self._bytes), default=1)

    def __getitem__(self, token: int) -> bytes:
        """Models may have more rows than their vocabulary has tokens; those say nothing."""
        return self._bytes[token] if token < len(self._bytes) else b""


class Detokenizer:
    """The text of one answer, token by token, in whole characters."""

    def __init__(self, table: ByteTable) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Text that ``token`` completes; often a word, sometimes nothing yet."""
        return self._decoder.decode(self._table[token])

    def flush(self) -> str:
        """What is left at the end: a replacement character if the last one was cut short."""
        return self._decoder.decode(b"", final=True)


def _token_bytes(token: str) -> bytes:
    """Byte-level BPE spells each byte as one printable character; added tokens are plain text."""
    try:
        return bytes(_BYTE_OF[character] for character in token)
    except KeyError:
        return token.encode("utf-8")


def byte_spelling() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 stands for itself, the other bytes for 256, 257, …"""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)}
    others = [byte for byte in range(256) if byte not in printable]
    spelling = {chr(byte): byte for byte in printable}
    return spelling | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF = byte_spelling()
