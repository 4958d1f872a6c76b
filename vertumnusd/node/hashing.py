"""Names for KV blocks: a chain of 16-byte hashes over the complete blocks of a token sequence.

A block's name covers its own tokens and, through its parent's name, everything before them, so
equal names mean equal KV. The salt stands before the first block: tenants with different salts
share no name. BLAKE2b, cut to 128 bits, is collision-resistant and the fastest hash in the standard
library.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b

from vertumnusd.messages import HASH_BYTES

TOKEN_BYTES = 4


def pack(tokens: Sequence[int]) -> bytes:
    """Token ids as little-endian u32, the form in which they travel between our parts."""
    ids = array("I", tokens)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes()


def chain(tokens: Sequence[int], block_tokens: int, salt: bytes) -> bytes:
    """Hashes of the complete blocks, laid end to end; a partial tail has no name.

    ``hash[i] = blake2b(hash[i - 1] + block[i])``; for the first block the parent is the hash of the
    salt, whatever its length.
    """
    packed = memoryview(pack(tokens))
    stride = block_tokens * TOKEN_BYTES
    parent = blake2b(salt, digest_size=HASH_BYTES).digest()
    names = []
    for start in range(0, len(packed) - stride + 1, stride):
        digest = blake2b(parent, digest_size=HASH_BYTES)
        digest.update(packed[start : start + stride])
        parent = digest.digest()
        names.append(parent)
    return b"".join(names)
