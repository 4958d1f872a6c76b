"""Node daemon ↔ prefill rank: what its pool holds, and copies of it to other ranks.

    what it holds      BlocksChanged …    DeleteBlocks → BlocksChanged    ReportBlocks → BlocksHeld
    source ranks       Pin → Pinned       … Unpin
    destination ranks  ReserveCopy → CopyReserved or CopyRefused          Install → Installed
                       Publish → Published                                ReleaseCopy → CopyReleased

The blocks of a chain are reported by the ranks that hold them, each block with its parent, whatever
the span. Who adds the reports up finds a complete path in a home if the block of every place in it
is held by the rank of the home that owns this place, and in a wider span likewise. What a split
leaves on one side only is in no complete path there: it is *pending*, and counts for nothing, until
the missing blocks are copied, by a transfer like any other, or computed again.

``control/transfer.py`` says in which order a copy goes. ``term`` and ``transfer`` name the transfer
in all its messages; they do not belong to an epoch, since a split or merge leaves blocks where they
are. Repeated messages, and those about a transfer that is over, are ignored, but for ReleaseCopy,
which is always answered.
"""

from __future__ import annotations

from vertumnusd.messages.base import Message

HELD_BLOCKS = 32_768  # 1 MiB of names


class BlocksChanged(Message, frozen=True):
    """What the rank's pool holds changed. ``version`` rises by one.

    After a gap ``ReportBlocks`` asks for all of it.

    ``stored``: (parent hash, block hash) pairs laid end to end, 32 bytes each, parents first; the
    parent of a first block is 16 zero bytes. ``evicted``: block hashes.
    """

    rank: int
    version: int
    stored: bytes
    evicted: bytes
    cached_blocks: int
    pinned_blocks: int
    free_blocks: int


class DeleteBlocks(Message, frozen=True):
    """Delete these blocks (hashes laid end to end, children first): they are reclaimed.

    One that is pinned, or was since the rank's report ``version``, stays: whoever used it may have
    stored a block behind it that the sender did not know of. ``BlocksChanged`` says what went.
    """

    term: int
    blocks: bytes
    version: int


class ReportBlocks(Message, frozen=True):
    """Say all that the pool holds; ``BlocksHeld`` answers."""


class BlocksHeld(Message, frozen=True):
    """A part of what the rank's pool holds, as of its report ``version``; parts come in a row.

    ``first`` part: what was known of the rank before is void. ``blocks``: (parent hash, block hash)
    pairs as in ``BlocksChanged``, at most ``HELD_BLOCKS`` of them.
    """

    rank: int
    version: int
    first: bool
    last: bool
    blocks: bytes


class Pin(Message, frozen=True):
    """Keep what this rank holds of ``chain`` until Unpin: others read it."""

    term: int
    transfer: int
    chain: bytes


class Pinned(Message, frozen=True):
    """``blocks`` (u32): which blocks of the chain the rank holds; ``block_ids`` (u32): where."""

    rank: int
    term: int
    transfer: int
    blocks: bytes
    block_ids: bytes


class Unpin(Message, frozen=True):
    """Nobody reads the blocks any more."""

    term: int
    transfer: int


class ReserveCopy(Message, frozen=True):
    """Pin what this rank owns and holds of ``chain`` in the span, and set room aside for the rest.

    The span is the ``home_ranks`` ranks from ``home_base`` on, as in ``Reserve``.
    """

    term: int
    transfer: int
    chain: bytes
    home_base: int
    home_ranks: int


class CopyReserved(Message, frozen=True):
    """``missing`` (u32): which blocks of the chain the rank owns and lacks; all have room."""

    rank: int
    term: int
    transfer: int
    missing: bytes


class CopyRefused(Message, frozen=True):
    """No room: ``needed_blocks`` against ``free_blocks``, free or evictable. Nothing is pinned."""

    rank: int
    term: int
    transfer: int
    needed_blocks: int
    free_blocks: int


class Install(Message, frozen=True):
    """Copy the missing blocks: ``blocks[i]`` of the chain from ``source_ids[i]`` in the pool of
    ``source_ranks[i]`` (u32 each).

    At most ``bytes_per_s``, in small pieces, so that the rank's steps do not notice. 0 is for a
    copy that a request waits for: as fast as can be, and before the others.
    """

    term: int
    transfer: int
    blocks: bytes
    source_ranks: bytes
    source_ids: bytes
    bytes_per_s: float


class Installed(Message, frozen=True):
    """The blocks are in the pool, without a name yet."""

    rank: int
    term: int
    transfer: int
    kv_bytes: int
    elapsed_s: float


class Publish(Message, frozen=True):
    """All ranks of the destination have installed their blocks: name them, and unpin the rest."""

    term: int
    transfer: int


class Published(Message, frozen=True):
    """The rank's ``BlocksChanged`` about the copy came before this."""

    rank: int
    term: int
    transfer: int


class ReleaseCopy(Message, frozen=True):
    """Give up the copy, and free its room once nobody writes there."""

    term: int
    transfer: int


class CopyReleased(Message, frozen=True):
    """The rank has nothing of the copy and writes nothing for it.

    ``kv_bytes``: what it had copied, unless it was all, and ``Installed`` said so.
    """

    rank: int
    term: int
    transfer: int
    kv_bytes: int = 0
