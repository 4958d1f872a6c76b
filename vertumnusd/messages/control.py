"""Controller ↔ node: events in, commands out; ``control/controller.py`` maps one to the other."""

from __future__ import annotations

import msgspec

from vertumnusd.messages.base import Message
from vertumnusd.messages.blocks import BlocksChanged, BlocksHeld
from vertumnusd.messages.rank import Adopted, Park, Parked

# --- events: node → controller


class Seated(Message, frozen=True):
    """This node's controller holds the seat for ``term``."""

    term: int


class RankUp(Message, frozen=True):
    rank: int
    kind: str
    incarnation: int


class RankDown(Message, frozen=True):
    """The rank's process is gone, and with it, at once, those of ``also`` (of the same kind)."""

    rank: int
    kind: str
    reason: str
    also: tuple[int, ...] = ()


class Submit(Message, frozen=True):
    """A gateway asks for a placement. The controller sees lengths and hashes, never text.

    ``attempt`` rises when a request is submitted again after its rank was lost.
    """

    request: str
    attempt: int
    input_tokens: int
    chain: bytes
    max_new_tokens: int
    keep: bool = True


class Cancel(Message, frozen=True):
    request: str


class PrefillDone(Message, frozen=True):
    """``expected_s``: what was predicted of the steps that took ``prefill_s``; 0: not known."""

    request: str
    attempt: int
    cached_tokens: int
    prefill_s: float
    expected_s: float = 0.0


class RoomMissing(Message, frozen=True):
    """The home had no room when the request was about to start; place it again later."""

    request: str
    attempt: int
    worker: str


class HandedOff(Message, frozen=True):
    """The prefill ranks owe this request nothing any more."""

    request: str
    attempt: int


class Done(Message, frozen=True):
    """The request is over on this node, whatever way it ended; its decode blocks are free."""

    request: str
    attempt: int


class Returned(Message, frozen=True):
    """A draining lead gives back what it has not begun, or has paused too long; place it again."""

    request: str
    attempt: int
    worker: str


class Drained(Message, frozen=True):
    """The worker's lead owes nothing to anyone, and takes nothing until ``Resume``."""

    term: int
    operation: int
    degree: int
    base: int


class Split(Message, frozen=True):
    """Split this worker, into workers of the next smaller degree."""

    degree: int
    base: int


class Merge(Message, frozen=True):
    """Form this worker, out of those of the next smaller degree."""

    degree: int
    base: int


class Drain(Message, frozen=True):
    """Take this worker out of service until ``Undrain``; ``WorkerDrained`` when it is idle."""

    degree: int
    base: int


class Undrain(Message, frozen=True):
    """Let the worker serve again."""

    degree: int
    base: int


MOST_HOLD_S = 30 * 86_400.0  # a longer one is a typing error


class Hold(Message, frozen=True):
    """Begin no split, merge or replication by itself for ``hold_s``; 0 lets it go on at once.

    ``by`` is who asks for it, in their own words.
    """

    hold_s: float
    by: str = ""


class ReclaimPrefix(Message, frozen=True):
    """Delete what a home holds of the path to this block and behind it, but for what is needed."""

    block: bytes
    home: int


class Replicated(Message, frozen=True):
    """Every rank of the destination has installed its blocks; their reports came before this."""

    transfer: int


class TransferFailed(Message, frozen=True):
    """No home has come to hold the path by this transfer, and no rank has anything of it in work.

    If a rank of the destination was lost while the copy was published, the others may have named
    their parts, and reported them.
    """

    transfer: int
    reason: str


# --- commands: controller → node


class AdoptWorker(Message, frozen=True):
    """Have every rank of the worker adopt its geometry; ``Adopted`` events answer."""

    term: int
    epoch: int
    degree: int
    base: int


class Exposed(Message, frozen=True):
    """The worker serves from now on."""

    term: int
    epoch: int
    worker: str
    degree: int
    base: int


class Withdrawn(Message, frozen=True):
    """The worker left service: a rank of it was lost, or it is drained and is to be parked."""

    term: int
    epoch: int
    worker: str
    reason: str


class Dispatch(Message, frozen=True):
    """Run this request now (or next) on ``worker``; its lead takes over.

    Its chain lies on the ``home_ranks`` ranks from ``home_base`` on (see ``Reserve``). It is also
    kept on those of ``keep_homes``, as wide, that hold its cached prefix already and have room for
    the rest: every rank of the worker has the KV at hand while it is computed.
    """

    term: int
    epoch: int
    request: str
    attempt: int
    worker: str
    degree: int
    base: int
    home_base: int
    home_ranks: int
    predicted_s: float
    decode_rank: int
    decode_blocks: int
    keep_homes: tuple[int, ...] = ()


class Compared(msgspec.Struct, frozen=True):
    """The best worker of another degree or cached prefix: J, and the terms that it is the sum of.

    With ``at_least`` the worker was not looked at more closely: its queue is no shorter than
    ``queue_s``, and J no less than ``cost_s``.
    """

    worker: str
    cached_tokens: int
    cost_s: float
    queue_s: float
    delay_s: float
    gpu_price_s: float
    at_least: bool


class Placed(Message, frozen=True):
    """Where a request waits, and the terms of J that chose it (seconds; see ``placement.py``)."""

    term: int
    epoch: int
    request: str
    worker: str
    degree: int
    preferred_degree: int
    input_tokens: int
    cached_tokens: int
    queue_s: float
    service_s: float
    gpu_price_s: float
    cost_s: float
    delay_s: float = 0.0
    fetch_s: float = 0.0  # beyond the queue
    transfer: int | None = None  # that fetches a part of the cached tokens
    others: tuple[Compared, ...] = ()  # the cheapest ones, without a fetch


class Reject(Message, frozen=True):
    """No place for this request. ``code`` is a wire error code; ``retry_after_s`` 0 is final."""

    request: str
    attempt: int
    code: str
    reason: str
    retry_after_s: float = 0.0


class Abort(Message, frozen=True):
    """The request was cancelled while dispatched: its lead stops at the next boundary."""

    request: str
    worker: str


class Lost(Message, frozen=True):
    """A rank that worked for this request is gone; its gateway submits it again."""

    request: str
    attempt: int
    reason: str


class DrainWorker(Message, frozen=True):
    """Have the worker finish what it runs; ``Returned`` and, at the end, ``Drained`` answer.

    Its lead gives back at once what it has not begun, and after ``patience_s`` what is paused.
    After ``deadline_s`` the controller calls the drain off with ``Resume``; 0: never by itself.
    """

    term: int
    epoch: int
    operation: int
    worker: str
    degree: int
    base: int
    patience_s: float
    deadline_s: float


class WorkerDrained(Message, frozen=True):
    """A worker that an operator drained runs nothing any more, after ``drain_s``."""

    worker: str
    drain_s: float


class Resume(Message, frozen=True):
    """The drain is called off: the worker goes on serving, under the epoch it has."""

    term: int
    epoch: int
    worker: str
    degree: int
    base: int


class Decided(Message, frozen=True):
    """What the end of a window came to, and the terms that decided it (see ``demand.py``).

    ``verdict`` is what was begun: "split", "merge" or "stay". ``signal`` is what this window by
    itself speaks for, ``held`` how many windows in a row have spoken for it.
    """

    window: int
    verdict: str
    signal: str
    reason: str
    held: int
    requests: int
    demand_s: float
    capacity_s: float
    upper_s: float
    lower_s: float
    long_request_share: float
    long_token_share: float
    composition: str
    # Under policy "ours", mean TTFT of the requests on each composition, this one first
    predicted_ttft_s: tuple[tuple[str, float], ...] = ()


class Converting(Message, frozen=True):
    """A split or merge begins. ``predicted_drain_s`` is what it was chosen by.

    ``window`` is that of the ``Decided`` which began it, 0 if somebody did by hand.
    """

    operation: int
    kind: str  # "split" or "merge"
    before: tuple[str, ...]
    after: tuple[str, ...]
    predicted_drain_s: float
    window: int = 0


class Converted(Message, frozen=True):
    """A split or merge is over: "exposed", or "rolled back" for ``reason`` in ``phase``."""

    operation: int
    kind: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    outcome: str
    phase: str
    reason: str
    drain_s: float
    switch_s: float  # from the end of the drain until the new workers serve; 0 if never


class Held(Message, frozen=True):
    """Nothing is begun automatically for ``hold_s`` from now; 0: it is again.

    ``by`` is who asked for that; "" where time has ended it.
    """

    hold_s: float
    by: str = ""


class Replicate(Message, frozen=True):
    """Copy blocks ``first_block`` … of ``chain`` from one span of ranks to another.

    ``chain`` has the whole path; its blocks before ``first_block`` are at the destination, or would
    be copied too. They and the source's are pinned, room is reserved, and nothing is published
    until all is installed; if that takes longer than ``deadline_s``, nothing ever is.
    ``Replicated`` or ``TransferFailed`` answers.

    A span is a number of ranks from its home on: one home, or those of a chain that lies on several
    (``layout.py``). The source may be any ranks that have the blocks between them, so a chain that
    a split left pending is made whole from where its parts are.
    """

    term: int
    transfer: int
    kind: str  # "intra", "inter", or "fetch": a request waits for it
    chain: bytes
    first_block: int
    source_home: int
    destination_home: int
    deadline_s: float
    source_ranks: int
    destination_ranks: int


class CancelTransfer(Message, frozen=True):
    """Nobody waits for this copy any more. ``TransferFailed`` answers, or ``Replicated`` did."""

    term: int
    transfer: int


class Reclaim(Message, frozen=True):
    """Delete these blocks (hashes laid end to end, children first) of a home.

    ``versions``: for each rank of it, the last report that the decision knew of. What is pinned, or
    was since, stays. The ranks' reports answer.
    """

    term: int
    home: int
    blocks: bytes
    versions: tuple[int, ...]


class AskBlocks(Message, frozen=True):
    """Reports of this rank are missing: have it say all that it holds. ``BlocksHeld`` answers."""

    term: int
    rank: int


ControlEvent = (
    Seated
    | RankUp
    | RankDown
    | Adopted
    | BlocksChanged
    | BlocksHeld
    | Submit
    | Cancel
    | PrefillDone
    | RoomMissing
    | HandedOff
    | Done
    | Returned
    | Drained
    | Parked
    | Split
    | Merge
    | Drain
    | Undrain
    | Hold
    | ReclaimPrefix
    | Replicated
    | TransferFailed
)
ControlCommand = (
    AdoptWorker
    | Exposed
    | Withdrawn
    | Dispatch
    | Placed
    | Reject
    | Abort
    | Lost
    | DrainWorker
    | WorkerDrained
    | Resume
    | Park
    | Decided
    | Converting
    | Converted
    | Held
    | Replicate
    | CancelTransfer
    | Reclaim
    | AskBlocks
)
