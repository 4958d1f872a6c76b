"""One request, from its acceptance until every trace of it is gone.

    UNPLACED ── a worker serves ──► WAITING ── room for it ──► DISPATCHED ── PrefillDone ─┐
        ▲                           │  ▲                           │                      ▼
        └──── none serves any more ─┘  └──────── RoomMissing ──────┘                  PREFILLED
                                                                                          │
                                      (gone) ◄── Done ── HANDED_OFF ◄────── HandedOff ────┘

Where its worker fetches its prefix (``fetching.py``), it is FETCHING before it is WAITING.
Done, a loss or a cancel ends it from any stage. What it holds, and the stages it holds it in:

* predicted time in its worker's queue: FETCHING, WAITING, DISPATCHED
* room in a home, and in those that it is kept on, for the blocks it computes: DISPATCHED, PREFILLED
* blocks of a decode rank, if it decodes: DISPATCHED, PREFILLED, HANDED_OFF
"""

from __future__ import annotations

from vertumnusd.control.fleet import Worker
from vertumnusd.control.stage import Stage
from vertumnusd.messages import Submit


class Request:
    """``arrival`` numbers requests as they are accepted."""

    stage: Stage = Stage.UNPLACED
    worker: Worker | None = None
    predicted_ns: int = 0
    turn: float = 0.0  # in its worker's queue (``worker_queue.py``)
    preferred_degree: int = 0  # as it was placed last
    home: int | None = None
    home_ranks: int = 0  # of the span from there on, that its chain lies on
    keep_homes: tuple[int, ...] = ()  # those that its chain is kept on besides
    fresh_blocks: int = 0  # set aside in the home: those not found in its cache
    decode_rank: int | None = None
    unplaced_until: float = 0.0
    cancelled: bool = False
    fetch: int | None = None  # the copy that it waits for, while it is FETCHING
    promised: bool = False  # its blocks count as about to be produced by its worker

    def __init__(
        self,
        submit: Submit,
        arrival: int,
        accepted_at: float,
        blocks: int,
        decode_blocks: int,
        marks: list[bytes] | None = None,
    ) -> None:
        """``blocks``: of its input; ``decode_blocks``: of its input and answer, 0 if it decodes
        nothing; ``marks``: of its chain (``promised.py``)."""
        self.submit = submit
        self.arrival = arrival
        self.accepted_at = accepted_at
        self.blocks = blocks
        self.decode_blocks = decode_blocks
        self.marks: list[bytes] = marks or []
        self.name = submit.request
        self.input_tokens = submit.input_tokens

    @property
    def order(self) -> tuple[float, int]:
        """The order of every queue: by turn, then by arrival."""
        return self.turn, self.arrival
