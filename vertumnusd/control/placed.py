"""What is told of a placement: where the request waits, and what decided it, in ``Placed``."""

from __future__ import annotations

from typing import NamedTuple

from vertumnusd.control.placement import Terms
from vertumnusd.control.request import Request
from vertumnusd.messages import Compared, Placed, Replicate

OTHERS_MAX = 4  # kinds beside the chosen one: prefixes differ from home to home on a large cluster


class Placement(NamedTuple):
    """The worker that was chosen, what it was compared with, and the copy that is waited for."""

    terms: Terms
    of_kinds: list[Terms]
    transfer: int | None = None
    commands: tuple[Replicate, ...] = ()

    def placed(self, term: int, epoch: int, request: Request) -> Placed:
        """``epoch``: that of the worker."""
        terms = self.terms
        return Placed(
            term=term,
            epoch=epoch,
            request=request.name,
            worker=terms.worker.name,
            degree=terms.worker.degree,
            preferred_degree=request.preferred_degree,
            input_tokens=request.input_tokens,
            cached_tokens=terms.kind.cached_tokens,
            queue_s=terms.queue_s,
            service_s=terms.price.service_s,
            gpu_price_s=terms.price.gpu_price_s,
            delay_s=terms.delay_s,
            cost_s=terms.cost_s,
            fetch_s=terms.fetch_s,
            transfer=self.transfer,
            others=_compared([each for each in self.of_kinds if each is not terms]),
        )


def _compared(others: list[Terms]) -> tuple[Compared, ...]:
    """The cheapest first."""
    cheapest = sorted(others, key=_cost_s)[:OTHERS_MAX]
    return tuple(
        [
            Compared(
                terms.worker.name,
                terms.kind.cached_tokens,
                terms.cost_s,
                terms.queue_s,
                terms.delay_s,
                terms.price.gpu_price_s,
                terms.at_least,
            )
            for terms in cheapest
        ]
    )


def _cost_s(terms: Terms) -> float:
    return terms.cost_s
