"""Names of KV blocks: from the ids of a trace to the chained hashes that the controller knows."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from vertumnusd.messages import HASH_BYTES

_ROOT = bytes(HASH_BYTES)


class BlockNames:
    """``edges`` has, for each name given out, its parent's name and itself, end to end."""

    def __init__(self) -> None:
        self.edges: dict[bytes, bytes] = {}
        self._names: dict[int, bytes] = {}

    def chain(self, blocks: Sequence[int]) -> list[bytes]:
        """The names along a path. An id stands for its whole path: one name, one parent."""
        names = self._names
        chain = []
        parent = _ROOT
        for block in blocks:
            name = names.get(block)
            if name is None:
                name = blake2b(block.to_bytes(8, "little"), digest_size=HASH_BYTES).digest()
                names[block], self.edges[name] = name, parent + name
            chain.append(name)
            parent = name
        return chain
