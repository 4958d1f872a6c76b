"""The leads of the workers that are led here: each from its worker's exposure to its withdrawal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vertumnusd.control.lead import Lead
from vertumnusd.control.prefill_time import PrefillTime
from vertumnusd.control.step_order import StepLimits
from vertumnusd.messages import Exposed


@dataclass(frozen=True, slots=True)
class LeadSettings:
    """What a new lead needs besides its worker."""

    block_tokens: int
    layers: int
    prefill_time: PrefillTime
    steps: StepLimits
    progress_timeout_s: float


class Leads:
    """By the name of the worker."""

    def __init__(self, settings: LeadSettings) -> None:
        self._settings = settings
        self._leads: dict[str, Lead] = {}

    def __getitem__(self, worker: str) -> Lead:
        return self._leads[worker]

    def __iter__(self) -> Iterator[Lead]:
        """Those of now, whatever is opened and closed meanwhile."""
        return iter(list(self._leads.values()))

    def open(self, exposed: Exposed) -> None:
        """The worker serves."""
        settings = self._settings
        self._leads[exposed.worker] = Lead(
            term=exposed.term,
            epoch=exposed.epoch,
            degree=exposed.degree,
            base=exposed.base,
            block_tokens=settings.block_tokens,
            layers=settings.layers,
            prefill_time=settings.prefill_time,
            limits=settings.steps,
            progress_timeout_s=settings.progress_timeout_s,
        )

    def close(self, worker: str) -> None:
        """It serves no more."""
        self._leads.pop(worker, None)

    def of_worker(self, worker: str) -> Lead | None:
        return self._leads.get(worker)

    def of_rank(self, rank: int) -> Lead | None:
        return next((lead for lead in self._leads.values() if rank in lead.ranks), None)

    def lose(self, rank: int) -> list[str]:
        """A rank is gone, and with it the lead of its worker: the requests that it had."""
        lost = [(worker, lead) for worker, lead in self._leads.items() if rank in lead.ranks]
        for worker, _ in lost:
            del self._leads[worker]
        return [request for _, lead in lost for request in lead.requests]

    def idle(self) -> bool:
        return not any(lead.requests for lead in self._leads.values())
