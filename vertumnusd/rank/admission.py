"""What the control thread hands to the engine thread with a Begin."""

from __future__ import annotations

from dataclasses import dataclass

from vertumnusd.messages import Begin
from vertumnusd.rank.blocks import Reservation


@dataclass(frozen=True, slots=True)
class Admission:
    """A Begin, what this rank had reserved for it on arrival, and what must be stored there."""

    begin: Begin
    reservation: Reservation | None  # None on a rank outside the home
    writable: dict[int, int]  # chain indices and pool ids
