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


DTYPE_BYTES = {"float32": 4, "bfloat16": 2}


class Kept(msgspec.Struct, frozen=True):
    """What a layer keeps of each token for later queries: a key and a value of this shape."""

    kv_heads: int
    head_dim: int
    dtype: str

    @property
    def token_bytes(self) -> int:
        return 2 * self.kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]


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

    def kept(self, layer: int) -> Kept:
        """What this layer keeps; whoever stores or sends it asks here, layer by layer."""
        assert 0 <= layer < self.layers
        return Kept(self.kv_heads, self.head_dim, self.dtype)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one token keeps over all layers."""
        return sum(self.kept(layer).token_bytes for layer in range(self.layers))
