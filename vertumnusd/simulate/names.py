"""Names of KV blocks: from the ids of a trace to the chained hashes that the controller knows."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from vertumnusd.messages import HASH_BYTES

_ROOT = bytes(HASH_BYTES)
_EMPTY = blake2b(digest_size=HASH_BYTES)  # copied in half the time that a new one takes


class BlockNames:
    """``edges`` has, for each name given out, its parent's name and itself, end to end."""

    def __init__(self) -> None:
        self.edges: dict[bytes, bytes] = {}
        self._names: dict[int, bytes] = {}

    def chain(self, blocks: Sequence[int]) -> list[bytes]:
        """The names along a path. An id stands for its whole path: one name, one parent.

        So nothing behind an id that is new has a name yet.
        """
        names, edges = self._names, self.edges
        chain = [names[block] for block in blocks if block in names]
        parent = chain[-1] if chain else _ROOT
        for block in blocks[len(chain) :]:
            hashed = _EMPTY.copy()
            hashed.update(block.to_bytes(8, "little"))
            name = hashed.digest()
            names[block], edges[name] = name, parent + name
            chain.append(name)
            parent = name
        return chain
