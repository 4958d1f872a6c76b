"""Where things lie: which rank of a home owns which block, and how large shared areas are.

A chain lies on a *span*, an aligned set of ``home_ranks`` ranks: one home, or all homes of a worker
when one home is too small for it. Block ``b`` lives on one of these ranks, in turn; where the turn
starts depends on the chain, so that the many first blocks spread out. The widths of spans divide
each other, so a rank's place within its home is the same for a block whichever span it is in: what
a wider span left on a rank is what this rank owns of the chain in its own home.

Daemon and ranks must agree on this to the letter, hence one module. Imports only messages.
"""

from __future__ import annotations

from array import array

from vertumnusd.messages import ModelInfo

BARRIER_BYTES = 4096  # of every rank: see rank/barrier.py


def rotation(chain: bytes, home_ranks: int) -> int:
    """Where the turn starts; 0 for a chain without a complete block."""
    return int.from_bytes(chain[:8], "little") % home_ranks


def owner(block: int, home_base: int, turn: int, home_ranks: int) -> int:
    """The rank that stores block ``block`` of a chain kept in the span at ``home_base``."""
    return home_base + (block + turn) % home_ranks


def owned_blocks(rank: int, blocks: int, home_base: int, turn: int, home_ranks: int) -> range:
    """Indices of the chain's first ``blocks`` blocks that ``rank`` owns; empty outside the span."""
    if not home_base <= rank < home_base + home_ranks:
        return range(0)
    return range((rank - home_base - turn) % home_ranks, blocks, home_ranks)


def interleave(ids_by_rank: dict[int, bytes], blocks: int, home_base: int, turn: int) -> bytes:
    """One u32 pool index per block, from each owner's indices in chain order."""
    home_ranks = len(ids_by_rank)
    merged = array("I", bytes(4 * blocks))
    for rank, ids in ids_by_rank.items():
        for block, block_id in zip(
            owned_blocks(rank, blocks, home_base, turn, home_ranks), array("I", ids), strict=True
        ):
            merged[block] = block_id
    return merged.tobytes()


def kv_pool_bytes(model: ModelInfo, blocks: int, block_tokens: int) -> int:
    """Size of one rank's KV pool: of every layer in turn (2, blocks, block_tokens) times what it
    keeps of a token."""
    return blocks * block_tokens * model.kv_bytes_per_token


def exchange_bytes(model: ModelInfo, tokens: int) -> int:
    """Size of a rank's exchange file: its area, and behind that what its barrier needs."""
    return exchange_area_bytes(model, tokens) + BARRIER_BYTES


def exchange_area_bytes(model: ModelInfo, tokens: int) -> int:
    """What any one layer keeps of ``tokens`` tokens, twice."""
    return 2 * tokens * max(model.kept(layer).token_bytes for layer in range(model.layers))
