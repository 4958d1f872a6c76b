"""Names of KV blocks: from the ids of a trace to the chained hashes that the controller knows."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from vertumnusd.messages import HASH_BYTES

_EMPTY = blake2b(digest_size=HASH_BYTES)  # copied in half the time that a new one takes


class BlockNames:
    """An id of a trace stands for its whole path, so its name needs no other."""

    def __init__(self) -> None:
        self._names: dict[int, bytes] = {}

    def chain(self, blocks: Sequence[int]) -> list[bytes]:
        """The names along a path. Nothing behind an id that is new has a name yet."""
        names = self._names
        chain = [names[block] for block in blocks if block in names]
        for block in blocks[len(chain) :]:
            hashed = _EMPTY.copy()
            hashed.update(block.to_bytes(8, "little"))
            names[block] = name = hashed.digest()
            chain.append(name)
        return chain
