"""What every door shares: the node behind it, and whether work may come in now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from vertumnusd.node.errors import UNAVAILABLE, RequestError
from vertumnusd.node.keys import ANYONE, Keys, Tenant, refusal
from vertumnusd.node.limits import Limits
from vertumnusd.node.metrics import Metrics
from vertumnusd.node.service import Operator, Service
from vertumnusd.node.tokens import Tokens

RETRY_AFTER_S = 1.0  # a node that is unready or busy may take work again after this


class Gate:
    """Counts requests in flight, turns away what cannot be taken, knows when all have ended."""

    def __init__(
        self,
        service: Service,
        tokens: Tokens,
        keys: Keys,
        metrics: Metrics,
        limits: Limits,
        operator: Operator,
    ) -> None:
        self.service = service
        self.operator = operator
        self.tokens = tokens
        self.keys = keys
        self.metrics = metrics
        self.limits = limits
        self.draining = trio.Event()
        self._in_flight: Counter[Tenant] = Counter()
        self._ended = trio.lowlevel.ParkingLot()

    def unready_reason(self) -> str:
        """Why new work is not taken; "" when it is."""
        return "draining" if self.draining.is_set() else self.service.unready_reason()

    @contextmanager
    def admit(self, tenant: Tenant) -> Iterator[None]:
        """Stay inside for as long as one request of ``tenant`` is worked on.

        Raises :class:`RequestError` 503 while the node takes no work, 429 over the key's limit,
        and 401 if the key was withdrawn while its websocket stayed open.
        """
        if not self.keys.accept(tenant):
            raise refusal("this API key is not valid any more")
        if reason := self.unready_reason():
            raise self._refusal(503, UNAVAILABLE, f"this node takes no requests now: {reason}")
        most = self.limits.in_flight_per_key
        if tenant != ANYONE and self._in_flight[tenant] >= most:
            raise self._refusal(
                429, "rate_limit_exceeded", f"this API key has {most} requests in flight already"
            )
        self._in_flight[tenant] += 1
        try:
            yield
        finally:
            self._in_flight[tenant] -= 1
            if not self._in_flight[tenant]:
                del self._in_flight[tenant]
            self._ended.unpark_all()

    async def until_idle(self) -> None:
        """Return when no request is in flight."""
        while self._in_flight:
            await self._ended.park()

    def _refusal(self, status: int, code: str, message: str) -> RequestError:
        self.metrics.rejected(code)
        return RequestError(status, code, message, retry_after_s=RETRY_AFTER_S)
