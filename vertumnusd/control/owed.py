"""Which answers the ranks owe, and who is late with one.

A rank that was stopped, or whose thread hangs, keeps its socket open: nothing but silence tells.
The lead watches the steps that it issued, because their length can be predicted. Everything else
that must be answered is watched here:

    Adopt → Adopted, Park → Parked, Reserve → Reserved or ReserveFailed   (prefill ranks)
    Pin → Pinned, ReserveCopy → CopyReserved or CopyRefused, Publish → Published,
    ReleaseCopy → CopyReleased      (prefill ranks; an Install ends with its transfer's deadline)
    Pull → Pulled, Generate → Drawn after Drawn, Close → Closed     (decode ranks)

Each answer shows that the rank works on its kind, and gives what it still owes of that kind time
again. Pure: ``now`` and messages in.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vertumnusd.messages import (
    Adopt,
    Adopted,
    Close,
    Closed,
    CopyRefused,
    CopyReleased,
    CopyReserved,
    DecodeFailed,
    Drawn,
    FromRank,
    Generate,
    Park,
    Parked,
    Pin,
    Pinned,
    Publish,
    Published,
    Pull,
    Pulled,
    ReleaseCopy,
    Reserve,
    ReserveCopy,
    Reserved,
    ReserveFailed,
    ToRank,
)

LATE_FACTOR = 5.0  # an answer this many times later than the last of its kind is late


@dataclass(slots=True)
class _Debt:
    """What one rank owes of one kind, by request, and how many answers each."""

    since: float
    owed: dict[str, int] = field(default_factory=dict)
    last_s: float = 0.0  # the last answer took so long


class Owed:
    """Hears every message to and from the ranks of one host."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._debts: dict[int, dict[type[ToRank], _Debt]] = {}

    def sent(self, now: float, rank: int, message: ToRank) -> None:
        match message:
            case Adopt() | Park():
                self._add(now, rank, type(message), "")
            case Reserve() | Generate():
                self._add(now, rank, type(message), message.request)
            case Pin() | ReserveCopy() | Publish() | ReleaseCopy():
                self._add(now, rank, type(message), _transfer(message))
            case Pull():
                self._add(now, rank, Pull, message.request, again=True)
            case Close():
                self._settle(now, rank, Generate, message.request)
                self._add(now, rank, Close, message.request)

    def heard(self, now: float, message: FromRank) -> None:
        match message:
            case Adopted():
                self._settle(now, message.rank, Adopt, "")
            case Parked():
                self._settle(now, message.rank, Park, "")
            case Reserved() | ReserveFailed():
                self._settle(now, message.rank, Reserve, message.request)
            case Pinned():
                self._settle(now, message.rank, Pin, _transfer(message))
            case CopyReserved() | CopyRefused():
                self._settle(now, message.rank, ReserveCopy, _transfer(message))
            case Published():
                self._settle(now, message.rank, Publish, _transfer(message))
            case CopyReleased():
                self._settle(now, message.rank, ReleaseCopy, _transfer(message))
            case Pulled():
                self._settle(now, message.rank, Pull, message.request)
            case Closed():
                self._settle(now, message.rank, Close, message.request)
            case DecodeFailed():
                self._settle(now, message.rank, Generate, message.request)
            case Drawn():
                for request, finished in zip(message.requests, message.finished, strict=True):
                    self._settle(now, message.rank, Generate, request, over=bool(finished))

    def gone(self, rank: int) -> None:
        """The rank's process ended, and its debts with it."""
        self._debts.pop(rank, None)

    def late(self, now: float) -> dict[int, str]:
        """Ranks that should be killed, and the message that they do not answer."""
        return {
            rank: kind.__name__
            for rank, debts in self._debts.items()
            for kind, debt in debts.items()
            if self._is_late(now, debt)
        }

    def _is_late(self, now: float, debt: _Debt) -> bool:
        patience_s = max(self._patience_s, LATE_FACTOR * debt.last_s)
        return bool(debt.owed) and now - debt.since > patience_s

    def _add(
        self, now: float, rank: int, kind: type[ToRank], request: str, *, again: bool = False
    ) -> None:
        """A repeated message is answered once; of pulls each is answered (``again``)."""
        debt = self._debts.setdefault(rank, {}).setdefault(kind, _Debt(now))
        if not debt.owed:
            debt.since = now
        debt.owed[request] = debt.owed.get(request, 0) + 1 if again else 1

    def _settle(
        self, now: float, rank: int, kind: type[ToRank], request: str, *, over: bool = True
    ) -> None:
        debt = self._debts.get(rank, {}).get(kind)
        if debt is None or request not in debt.owed:
            return
        debt.last_s, debt.since = now - debt.since, now
        if over:
            debt.owed[request] -= 1
            if not debt.owed[request]:
                del debt.owed[request]


def _transfer(
    message: Pin
    | Pinned
    | ReserveCopy
    | CopyReserved
    | CopyRefused
    | Publish
    | Published
    | ReleaseCopy
    | CopyReleased,
) -> str:
    return f"transfer {message.term}.{message.transfer}"
