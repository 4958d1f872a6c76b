"""What all messages are made of, and what several conversations speak of."""

from __future__ import annotations

import msgspec

HASH_BYTES = 16


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of everything sent: frozen, and tagged with its class name on the wire."""


class Sampling(msgspec.Struct, frozen=True):
    """How tokens are drawn. ``temperature`` 0 is greedy; ``seed`` makes draws repeatable."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


class ModelInfo(msgspec.Struct, frozen=True):
    """Shape of the served model, as its checkpoint states it."""

    name: str
    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    context_tokens: int
    norm_eps: float
    rope_theta: float
    tied_embeddings: bool
    dtype: str  # compute and KV dtype: "float32" or "bfloat16"

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V that one token keeps over all layers."""
        itemsize = {"float32": 4, "bfloat16": 2}[self.dtype]
        return 2 * self.layers * self.kv_heads * self.head_dim * itemsize
