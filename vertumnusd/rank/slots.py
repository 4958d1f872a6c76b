"""The requests of a decode rank and the blocks they have, without any tensor or thread.

    Open ──► open ──Pull… Generate──► running ──► finished
              │         │                │           │
              └─────────┴──── Close ─────┴───────────┘ ──► gone, once no thread holds the slot

A slot lives from its Open to its Close, whatever became of the request in between: a refused Open
or a failed copy leaves it *failed*, and only Close frees. Close takes the request's name at once,
but a copy or an iteration under way still touches the blocks; each of those *holds* the slot, and
the last one to drop it frees the blocks. So no block gets a new owner while a thread writes it.

Whoever calls from several threads brings the lock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vertumnusd.messages import Generate, Open
from vertumnusd.rank.blocks import NoRoom
from vertumnusd.rank.free_runs import FreeRuns


@dataclass(slots=True, eq=False)
class Slot:
    """One request: its blocks, and where its answer stands."""

    opening: Open
    block_ids: list[int] = field(default_factory=list)
    holds: int = 0  # copies queued or under way, and the iteration it is part of
    pulls: int = 0  # the copies among them
    closed: bool = False
    over: bool = False  # finished or failed: draws no more
    generating: bool = False
    token: int = -1  # the last one drawn, whose KV is not stored yet
    stored_tokens: int = 0
    position: int = 0  # answer index of ``token``
    tokens_left: int = 0

    @property
    def request(self) -> str:
        return self.opening.request

    @property
    def runnable(self) -> bool:
        return self.generating and not (self.pulls or self.closed or self.over)

    def advance(self, token: int) -> str | None:
        """Take the token drawn; why the answer ends with it ("stop", "length"), or "".

        None if the request was closed while it was drawn: nobody wants it.
        """
        if self.closed:
            return None
        self.token = token
        self.stored_tokens += 1
        self.position += 1
        self.tokens_left -= 1
        reason = ""
        if token in self.opening.stop_tokens:
            reason = "stop"
        elif self.tokens_left == 0:
            reason = "length"
        self.over = bool(reason)
        return reason


class Slots:
    """All slots of one decode rank, over a pool of ``blocks`` blocks."""

    def __init__(self, blocks: int, block_tokens: int, context_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._context_tokens = context_tokens
        self._free = FreeRuns(blocks)
        self._open: dict[str, Slot] = {}

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    def open(self, opening: Open) -> None:
        """Set blocks aside; a repeat is ignored. NoRoom leaves a failed slot without blocks."""
        if opening.request in self._open:
            return
        slot = self._open[opening.request] = Slot(opening)
        if opening.blocks > len(self._free):
            slot.over = True
            raise NoRoom(opening.blocks, len(self._free))
        slot.block_ids = self._free.take(opening.blocks)

    def generate(self, generate: Generate) -> None:
        """Let the request draw, once its copies are done; ignored if unknown, over or repeated.

        Raises ValueError, and fails the slot, if its blocks or the model's context are too short.
        """
        slot = self._open.get(generate.request)
        if slot is None or slot.over or slot.generating:
            return
        # The last token drawn is never stored, but the first one, drawn elsewhere, is.
        needed_tokens = generate.input_tokens + generate.max_new_tokens
        room_tokens = min(len(slot.block_ids) * self._block_tokens, self._context_tokens)
        if generate.max_new_tokens < 1 or needed_tokens > room_tokens:
            slot.over = True
            raise ValueError(f"{needed_tokens} tokens do not fit the room for {room_tokens}")
        slot.generating = True
        slot.token = generate.first_token
        slot.stored_tokens = generate.input_tokens
        slot.position = generate.position
        slot.tokens_left = generate.max_new_tokens

    def begin_pull(self, request: str) -> Slot | None:
        """Hold the slot for one copy; None if there is nothing to copy for."""
        slot = self._open.get(request)
        if slot is None or slot.over:
            return None
        slot.pulls += 1
        slot.holds += 1
        return slot

    def end_pull(self, slot: Slot) -> bool:
        """True if that freed the blocks of a closed slot."""
        slot.pulls -= 1
        return self._drop(slot)

    def begin_iteration(self) -> list[Slot]:
        """Hold every request that can draw a token now."""
        running = [slot for slot in self._open.values() if slot.runnable]
        for slot in running:
            slot.holds += 1
        return running

    def end_iteration(self, running: list[Slot]) -> list[Slot]:
        """Those closed meanwhile, whose blocks are free with that."""
        return [slot for slot in running if self._drop(slot)]

    def close(self, request: str) -> bool:
        """Forget the request; True if its blocks are free with that, not held any more."""
        slot = self._open.pop(request, None)
        if slot is None:
            return False
        slot.closed = True
        return self._free_if_unused(slot)

    def _drop(self, slot: Slot) -> bool:
        slot.holds -= 1
        return self._free_if_unused(slot)

    def _free_if_unused(self, slot: Slot) -> bool:
        if slot.holds or not slot.closed:
            return False
        self._free.give(slot.block_ids)
        return True
