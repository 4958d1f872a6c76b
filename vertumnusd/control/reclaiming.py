"""What of a path a home can give up, when somebody asks for it.

The block itself and all that is kept behind it go, children first; then what is before it, as far
as nothing else follows there. What is needed stays, and with it the whole path to it.
"""

from __future__ import annotations

from collections.abc import Callable

from vertumnusd.control.prefix_nodes import PrefixNodes
from vertumnusd.messages import HASH_BYTES

MOST_BLOCKS = 1 << 16  # looked at for one order; what is left can be asked for again


def reclaimable(
    nodes: PrefixNodes, block: bytes, home: int, needed: Callable[[bytes], bool]
) -> list[bytes]:
    """Blocks of ``home``, in an order in which they can be deleted."""
    gone: dict[bytes, None] = {}

    def can_go(name: bytes) -> bool:
        return not needed(name) and nodes.kept_behind(name, home) <= gone.keys()

    for name in _children_first(nodes, block, home):
        if can_go(name):
            gone[name] = None
    chain = nodes.chain_to(block)
    end = len(chain) - HASH_BYTES
    while block in gone and end and can_go(chain[end - HASH_BYTES : end]):
        gone[chain[end - HASH_BYTES : end]] = None
        end -= HASH_BYTES
    return list(gone)


def _children_first(nodes: PrefixNodes, block: bytes, home: int) -> list[bytes]:
    found: list[bytes] = []
    left = [block]
    while left and len(found) < MOST_BLOCKS:
        name = left.pop()
        found.append(name)
        left += sorted(nodes.kept_behind(name, home))
    return found[::-1]
