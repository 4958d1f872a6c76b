"""The decode rank: pulls finished prefills' KV and draws the rest of their answers.

* The **control thread** reads the socket and keeps the slots (Open, Generate, Close) at once.
* The **transfer thread** copies KV out of the prefill ranks' pools, one Pull after the other.
* The **engine thread**, the main one, runs iterations: one forward over all running requests, one
  token for each. A request joins between two iterations, once its copies are done; it leaves at
  its stop token (which is among the tokens reported), at its length, or at its Close.

Every Pull is answered by exactly one Pulled, in order, whatever became of its request (0 bytes if
nothing was copied), because the source blocks stay pinned until then.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import NoReturn, Protocol

from vertumnusd.messages import (
    Close,
    Closed,
    DecodeFailed,
    Drawn,
    Generate,
    Open,
    Pull,
    Pulled,
    RankStart,
    Ready,
    ToRank,
)
from vertumnusd.rank.blocks import NoRoom
from vertumnusd.rank.link import Link, ProtocolError
from vertumnusd.rank.slots import Slot, Slots

Failure = FloatingPointError | MemoryError  # of one request; the others go on


class Decoding(Protocol):
    """What computes, or seems to; ``name`` is that of its attention."""

    name: str

    def forward(self, running: Sequence[Slot]) -> list[int | Failure]:
        """The next token of each slot, or why there is none."""

    def pull(self, pull: Pull, block_ids: Sequence[int]) -> int:
        """Copy the Pull's KV into these blocks; its bytes. ValueError if they are not there."""


class DecodeRank:
    """One decode rank: ``receive`` is the control thread's, ``serve`` the engine thread's."""

    def __init__(
        self, start: RankStart, link: Link, open_decoding: Callable[[RankStart], Decoding]
    ) -> None:
        self._open_decoding = open_decoding
        self._start = start
        self._link = link
        self._changed = threading.Condition()  # guards the slots; notified when one may run
        self._slots = Slots(start.own_kv_blocks, start.block_tokens, start.model.context_tokens)
        self._pulls: SimpleQueue[tuple[Pull, Slot | None]] = SimpleQueue()

    def receive(self, message: ToRank) -> None:
        """Raises ProtocolError for what is not ours; unknown and repeated requests are ignored."""
        with self._changed:
            match message:
                case Open():
                    self._on_open(message)
                case Pull():
                    self._pulls.put((message, self._slots.begin_pull(message.request)))
                case Generate():
                    self._on_generate(message)
                case Close():
                    if self._slots.close(message.request):
                        self._send_closed(message.request)
                case _:
                    raise ProtocolError(f"{type(message).__name__} sent to a decode rank")

    def serve(self) -> NoReturn:
        """Map memory, say Ready, and draw tokens until the process ends."""
        start = self._start
        if start.core >= 0:
            os.sched_setaffinity(0, {start.core})
        decoding = self._open_decoding(start)
        threading.Thread(
            target=self._transfer, args=(decoding,), name="transfer", daemon=True
        ).start()
        self._link.send(Ready(start.rank, start.incarnation, os.getpid(), decoding.name))
        while True:
            with self._changed:
                running = self._changed.wait_for(self._slots.begin_iteration)
            self._report(running, decoding.forward(running))

    def _on_open(self, opening: Open) -> None:
        try:
            self._slots.open(opening)
        except NoRoom as no:
            self._send_failed(opening.request, no)

    def _on_generate(self, generate: Generate) -> None:
        try:
            self._slots.generate(generate)
        except ValueError as error:
            self._send_failed(generate.request, error)
        self._changed.notify()

    # --- engine thread

    def _report(self, running: list[Slot], drawn: Sequence[int | Failure]) -> None:
        """Tell the daemon what was drawn, and let go of what was closed meanwhile."""
        lines: list[tuple[str, int, str]] = []
        with self._changed:
            for slot, token in zip(running, drawn, strict=True):
                if isinstance(token, Failure):
                    self._fail(slot, token)
                elif (finished := slot.advance(token)) is not None:
                    lines.append((slot.request, token, finished))
            if lines:
                self._link.send(Drawn(self._start.rank, *zip(*lines, strict=True)))
            for slot in self._slots.end_iteration(running):
                self._send_closed(slot.request)

    # --- transfer thread

    def _transfer(self, decoding: Decoding) -> None:
        try:
            while True:
                self._pull(*self._pulls.get(), decoding)
        except Exception as error:
            self._link.fault(error)

    def _pull(self, pull: Pull, slot: Slot | None, decoding: Decoding) -> None:
        started = time.perf_counter()
        kv_bytes, failure = 0, None
        if slot is not None and not slot.closed:
            try:
                kv_bytes = decoding.pull(pull, slot.block_ids)
            except ValueError as error:
                failure = error
        elapsed_s = time.perf_counter() - started
        with self._changed:
            if slot is not None and failure is not None:
                self._fail(slot, failure)
            self._link.send(
                Pulled(self._start.rank, pull.request, pull.last_layer, kv_bytes, elapsed_s)
            )
            if slot is not None and self._slots.end_pull(slot):
                self._send_closed(slot.request)
            self._changed.notify()

    def _fail(self, slot: Slot, error: Exception) -> None:
        """Fail the request, unless it was closed: its name may be another one's by now."""
        if not slot.closed:
            slot.over = True
            self._send_failed(slot.request, error)

    def _send_failed(self, request: str, error: Exception) -> None:
        self._link.send(DecodeFailed(self._start.rank, request, str(error)))

    def _send_closed(self, request: str) -> None:
        self._link.send(Closed(self._start.rank, request, self._slots.free_blocks))
