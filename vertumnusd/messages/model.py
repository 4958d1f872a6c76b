"""What the checkpoint says of the served model: everything that decides shapes and numbers."""

from __future__ import annotations

import msgspec

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}


class Kept(msgspec.Struct, frozen=True):
    """What a layer keeps of each token for later queries: a key and a value of this shape."""

    kv_heads: int
    head_dim: int
    dtype: str

    @property
    def token_bytes(self) -> int:
        return 2 * self.kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]


class LinearRope(msgspec.Struct, frozen=True, tag=True):
    """All angles divided by ``factor``."""

    factor: float


class Llama3Rope(msgspec.Struct, frozen=True, tag=True):
    """Slow angles divided by ``factor``, fast ones kept, a ramp between (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_tokens: int


class YarnRope(msgspec.Struct, frozen=True, tag=True):
    """As Llama 3.1, by numbers of turns, and with longer queries and keys (arXiv 2309.00071)."""

    factor: float
    attention_factor: float
    beta_fast: float
    beta_slow: float
    original_context_tokens: int
    truncate: bool


class DividedRope(msgspec.Struct, frozen=True, tag=True):
    """Each angle divided by a number of its own, as GGUF files write Llama 3.1's scaling."""

    divisors: tuple[float, ...]


RopeScaling = LinearRope | Llama3Rope | YarnRope | DividedRope


class Experts(msgspec.Struct, frozen=True):
    """The MLPs of a mixture of experts."""

    count: int
    per_token: int
    intermediate: int
    normalised: bool  # whether the weights of a token's experts add up to 1
    layers: tuple[int, ...]  # those that have experts; the others have one MLP


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
    rope_scaling: RopeScaling | None = None
    qk_norm: bool = False  # whether each head's query and key are normalised
    experts: Experts | None = None

    def kept(self, layer: int) -> Kept:
        """What this layer keeps; whoever stores or sends it asks here, layer by layer."""
        assert 0 <= layer < self.layers
        return Kept(self.kv_heads, self.head_dim, self.dtype)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one token keeps over all layers."""
        return sum(self.kept(layer).token_bytes for layer in range(self.layers))
