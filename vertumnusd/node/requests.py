"""The node behind its doors: implements :class:`service.Service` over the hub."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from socket import gethostname
from typing import Any

import trio

from vertumnusd.messages import Answer, Failed, Finished, ModelInfo, Placed
from vertumnusd.node.errors import UNAVAILABLE
from vertumnusd.node.gate import RETRY_AFTER_S
from vertumnusd.node.hub import Hub
from vertumnusd.node.service import Job

# Beyond its tokens an answer has placements and one ending.
EVENTS_BESIDES_TOKENS = 16


class Requests:
    """Open answers of this gateway, each a bounded channel that the hub fills."""

    def __init__(
        self,
        model: ModelInfo,
        kv_capacity_tokens: int,
        observe: Callable[[Finished | Failed], None],
    ) -> None:
        self.model = model
        self.kv_capacity_tokens = kv_capacity_tokens
        self.unready = "starting"
        self._observe = observe
        self._hub: Hub | None = None
        self._answers: dict[str, trio.MemorySendChannel[Answer]] = {}

    def attach(self, hub: Hub) -> None:
        """The hub emits through ``emit``, and is made after it."""
        self._hub = hub

    def unready_reason(self) -> str:
        return self.unready

    def running(self) -> int:
        """Answers that are not over yet."""
        return len(self._answers)

    def cut_off(self, reason: str) -> None:
        """End every answer with an error, now."""
        failed = Failed(503, UNAVAILABLE, reason, RETRY_AFTER_S)
        for request in list(self._answers):
            self.emit(request, failed)
        self._answers.clear()  # what the hub says of them afterwards is too late

    def cluster(self) -> dict[str, Any]:
        assert self._hub is not None
        node = {
            "model": self.model.name,
            "layers": self.model.layers,
            "context_tokens": self.model.context_tokens,
            "unready": self.unready,
            "node": gethostname(),
            "kv_bytes_per_token": self.model.kv_bytes_per_token,
        }
        return {**node, **self._hub.snapshot()}

    def emit(self, request: str, event: Answer) -> None:
        """From the hub: the next event of an answer. Answers whose client left have no channel."""
        if isinstance(event, Finished | Failed):
            self._observe(event)
        channel = self._answers.get(request)
        if channel is None:
            return
        if isinstance(event, Placed):
            # A request may be placed any number of times while its client does not read: the room
            # of tokens and the ending is not for that.
            waiting = channel.statistics().current_buffer_used
            if waiting >= EVENTS_BESIDES_TOKENS - 1:
                return
        channel.send_nowait(event)

    @asynccontextmanager
    async def answer(self, job: Job) -> AsyncIterator[AsyncIterator[Answer]]:
        assert self._hub is not None
        capacity = job.max_new_tokens + EVENTS_BESIDES_TOKENS
        send, receive = trio.open_memory_channel[Answer](capacity)
        self._answers[job.request] = send
        try:
            self._hub.submit(job)
            async with aclosing(_until_end(receive)) as answer:
                yield answer
        finally:
            self._answers.pop(job.request, None)
            self._hub.leave(job.request)
            send.close()
            receive.close()


async def _until_end(
    receive: trio.MemoryReceiveChannel[Answer],
) -> AsyncGenerator[Answer, None]:
    async for event in receive:
        yield event
        if isinstance(event, Finished | Failed):
            return
