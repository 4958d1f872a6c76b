"""Node daemon ↔ its processes: the host helper, prefill ranks and decode ranks.

What prefill ranks hold, and copies between them, have their messages in ``blocks.py``.
"""

from __future__ import annotations

import msgspec

from vertumnusd.messages.base import Message, Sampling
from vertumnusd.messages.blocks import (
    BlocksChanged,
    BlocksHeld,
    CopyRefused,
    CopyReleased,
    CopyReserved,
    DeleteBlocks,
    Install,
    Installed,
    Pin,
    Pinned,
    Publish,
    Published,
    ReleaseCopy,
    ReportBlocks,
    ReserveCopy,
    Unpin,
)
from vertumnusd.messages.model import ModelInfo
from vertumnusd.messages.pace import Pace

# --- node daemon → host helper, host helper → node daemon


class TensorSpec(msgspec.Struct, frozen=True):
    """One weight tensor inside the shared weights file."""

    name: str
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file


class LoadModel(Message, frozen=True):
    """Put the checkpoint at ``path`` into the shared file ``weights_fd`` as ``dtype``."""

    path: str
    name: str
    dtype: str
    weights_fd: int
    host: str  # where the store listens


class LoadProgress(Message, frozen=True):
    loaded_bytes: int
    total_bytes: int


class Loaded(Message, frozen=True):
    """Weights are in place and the store for the collectives listens on ``store_port``."""

    model: ModelInfo
    tensors: list[TensorSpec]
    weights_bytes: int
    store_port: int


# --- node daemon → rank, both kinds


class RankStart(Message, frozen=True):
    """First message to a rank: everything it needs to map memory and join its groups.

    ``kv_fds[i]`` is the KV pool file of prefill rank ``i`` of this host and
    ``exchange_fds[i]`` its exchange area; a rank maps all of them and writes its own pool only.
    ``generation`` is new whenever the ranks of its lattice root are restarted; it prefixes the
    names of their groups in the store.
    """

    rank: int
    kind: str  # "prefill" or "decode"
    incarnation: int
    generation: str
    model: ModelInfo
    tensors: list[TensorSpec]
    weights_fd: int
    store_host: str
    store_port: int
    cp_degrees: tuple[int, ...]
    block_tokens: int
    kv_blocks: int  # pool capacity of one prefill rank
    kv_fds: tuple[int, ...]
    exchange_fds: tuple[int, ...]
    exchange_tokens: int
    own_kv_fd: int  # a decode rank's own pool; -1 for prefill ranks
    own_kv_blocks: int
    core: int  # cpu to pin to, -1 for none
    collective_timeout_s: float
    barrier_spin_s: float = 0.0  # how long a rank looks around for its peers before it sleeps
    pace: Pace | None = None  # of a rank that only seems to compute
    device: str = "cpu"  # or "cuda:N", a device of the rank's own
    activation_bytes: int = 0  # memory for the steps of a prefill rank; 0: without limit
    debug_plans: bool = False  # whether the ranks of a worker compare their plans at each step
    exchange: str = "shared"  # or "collective": for ranks that do not see the same memory


class Ready(Message, frozen=True):
    """The rank mapped its memory, created and warmed its groups."""

    rank: int
    incarnation: int
    pid: int
    attention: str  # name of the attention implementation chosen at start


class RankFault(Message, frozen=True):
    """The rank cannot go on (a collective failed, its start failed); it ends after this."""

    rank: int
    reason: str


# --- node daemon → prefill rank


class Adopt(Message, frozen=True):
    """Use the group of ``degree`` ranks starting at ``base`` for steps of ``epoch``."""

    term: int
    epoch: int
    degree: int
    base: int


class Park(Message, frozen=True):
    """Stop at the next step boundary, as every rank of this worker shall; ``Parked`` answers.

    ``epoch`` is new. From then on a rank refuses everything older, so no step of the old geometry
    can follow; nothing but an Adopt of a newer epoch ends it.
    """

    term: int
    epoch: int
    degree: int
    base: int


class Reserve(Message, frozen=True):
    """Pin the cached blocks of a chain and set room aside for the rest, on the ranks of its span.

    The span is the aligned set of ``home_ranks`` ranks from ``home_base`` on: one home, or all
    homes of a worker if one cannot hold the chain. Sent to every rank of it; each looks after the
    blocks that it owns (``layout.py``). ``chain`` holds the hashes of the complete blocks;
    ``blocks`` also counts the partial tail. At most ``max_cached`` leading blocks may be used from
    cache: at least one token is always computed.
    """

    term: int
    epoch: int
    request: str
    chain: bytes
    blocks: int
    max_cached: int
    home_base: int
    home_ranks: int
    keep: bool  # publish the chain's blocks when the prefill ends


class Begin(Message, frozen=True):
    """Job description of one prefill; its steps follow.

    ``tokens`` are the uncached ones; ``block_ids`` (u32) has one pool index for every block of the
    chain, cached ones first, each in the pool of the rank that owns the block. ``home_base`` and
    ``home_ranks`` are the chain's span (see ``Reserve``).
    """

    term: int
    epoch: int
    request: str
    tokens: bytes
    cached_tokens: int
    block_ids: bytes
    home_base: int
    home_ranks: int
    rotation: int
    sampling: Sampling
    position: int  # index of the first token to be drawn in the answer; seeds its draw


class StepPart(msgspec.Struct, frozen=True):
    """One request of a step, with what all ranks need to know of it to plan alike."""

    request: str
    cached_tokens: int
    uncached_tokens: int


class Step(Message, frozen=True):
    """Run layers ``first_layer`` … ``last_layer - 1`` of a request, or of a pack of short ones.

    ``seq`` rises by one. Every rank answers with one StepDone.
    """

    term: int
    epoch: int
    seq: int
    first_layer: int
    last_layer: int
    parts: tuple[StepPart, ...]


class Discard(Message, frozen=True):
    """Forget the request's hidden states; in order with its steps.

    It follows every failed step: a rank that has published blocks of the request takes them back.
    """

    term: int
    epoch: int
    request: str


class Release(Message, frozen=True):
    """Unpin the request's blocks; those never published become free."""

    request: str


# --- prefill rank → node daemon


class Adopted(Message, frozen=True):
    rank: int
    term: int
    epoch: int
    degree: int


class Parked(Message, frozen=True):
    """The rank stands at a step boundary and refuses whatever is older than ``epoch``."""

    rank: int
    term: int
    epoch: int


class Reserved(Message, frozen=True):
    """``first_missing``: index of the first block this rank owns and does not hold (``blocks`` if
    none; the lead caps it at ``max_cached``). ``block_ids`` (u32): pool index of each owned block
    of the chain, in order."""

    rank: int
    epoch: int
    request: str
    first_missing: int
    block_ids: bytes


class ReserveFailed(Message, frozen=True):
    """The rank's pool has no room: ``needed_blocks`` against ``free_blocks``, free or evictable.

    Nothing is pinned.
    """

    rank: int
    epoch: int
    request: str
    needed_blocks: int
    free_blocks: int


class StepDone(Message, frozen=True):
    """The rank is through with the step. ``drawn``: the first tokens that it drew, by request."""

    rank: int
    epoch: int
    seq: int
    elapsed_s: float
    drawn: dict[str, int] = msgspec.field(default_factory=dict)


class StepFailed(Message, frozen=True):
    """This request of the step failed on this rank (out of memory, say); others are untouched.

    The step's StepDone follows.
    """

    rank: int
    epoch: int
    seq: int
    request: str
    reason: str


class Refused(Message, frozen=True):
    """A command was older than the adopted (term, epoch), or of an unknown group.

    ``term`` and ``epoch`` are the adopted ones, not the command's.
    """

    rank: int
    term: int
    epoch: int
    command: str


# --- node daemon ↔ decode rank


class Open(Message, frozen=True):
    """Set ``blocks`` KV blocks aside for a request about to be prefilled."""

    request: str
    blocks: int
    sampling: Sampling
    stop_tokens: tuple[int, ...]


class Pull(Message, frozen=True):
    """Copy layers ``first_layer`` … ``last_layer - 1`` of the chain from its span's pools.

    Source blocks are pinned until the copy is acknowledged by ``Pulled``. Every Pull is, in order,
    whatever became of its request; ``kv_bytes`` is 0 if nothing was copied.
    """

    request: str
    first_layer: int
    last_layer: int
    block_ids: bytes
    home_base: int
    home_ranks: int
    rotation: int


class Generate(Message, frozen=True):
    """The KV is complete, or will be after the Pulls sent before: continue after ``first_token``,
    which stands at ``input_tokens``.

    ``position`` is the answer index of ``first_token``; at most ``max_new_tokens`` further tokens.
    """

    request: str
    first_token: int
    input_tokens: int
    position: int
    max_new_tokens: int


class Close(Message, frozen=True):
    """Stop the request, wherever it is, and free its blocks; its name may be opened again at once.

    Repeats are ignored.
    """

    request: str


class Pulled(Message, frozen=True):
    rank: int
    request: str
    last_layer: int
    kv_bytes: int
    elapsed_s: float


class Drawn(Message, frozen=True):
    """One decode iteration: the token of each running request, and why it ended, if it did.

    A stop token is among them. Nothing is drawn for a request after its ``Closed``.
    """

    rank: int
    requests: tuple[str, ...]
    tokens: tuple[int, ...]
    finished: tuple[str, ...]  # "", "stop" or "length"


class DecodeFailed(Message, frozen=True):
    """The request draws no more; it stays open, with what it has, until its Close."""

    rank: int
    request: str
    reason: str


class Closed(Message, frozen=True):
    """The request's decode blocks are free again."""

    rank: int
    request: str
    free_blocks: int


# --- probe of a rank's place → profile


class Exchanged(msgspec.Struct, frozen=True):
    """``elapsed_s``: a layer's K and V of ``tokens`` uncached tokens, shown by all to all."""

    degree: int
    tokens: int
    elapsed_s: float


class Probed(Message, frozen=True):
    rank: int
    exchanges: list[Exchanged]
    copy_bytes_s: float  # from another rank's pool; 0 if there is no other rank


ToRank = (
    RankStart
    | Adopt
    | Park
    | Reserve
    | Begin
    | Step
    | Discard
    | Release
    | Pin
    | Unpin
    | ReserveCopy
    | Install
    | Publish
    | ReleaseCopy
    | DeleteBlocks
    | ReportBlocks
    | Open
    | Pull
    | Generate
    | Close
)
FromRank = (
    Ready
    | RankFault
    | Adopted
    | Parked
    | Reserved
    | ReserveFailed
    | StepDone
    | StepFailed
    | Refused
    | BlocksChanged
    | BlocksHeld
    | Pinned
    | CopyReserved
    | CopyRefused
    | Installed
    | Published
    | CopyReleased
    | Pulled
    | Drawn
    | DecodeFailed
    | Closed
)
ToHelper = LoadModel
FromHelper = LoadProgress | Loaded | RankFault
FromProbe = Probed | RankFault
