"""``/v1/admin/feed``: a websocket over which a console follows the cluster (``messages/feed.py``).

A console sends nothing; what it sends all the same is ignored. One that does not read what it is
sent is closed with 1013.
"""

from __future__ import annotations

import trio
from wsproto.frame_protocol import CloseReason

from vertumnusd.node.feed import Feed
from vertumnusd.node.limits import Limits
from vertumnusd.node.websocket_link import Link, LinkClosed


class FeedSession:
    """One console."""

    def __init__(self, link: Link, feed: Feed, limits: Limits) -> None:
        self._link = link
        self._feed = feed
        self._limits = limits

    async def run(self) -> None:
        """Until the websocket closes, for whatever reason."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._abort_at_end)
                nursery.start_soon(self._ping)
                nursery.start_soon(self._send)
                while True:
                    await self._link.receive()
        except* LinkClosed:
            pass  # the usual end

    async def _send(self) -> None:
        """While a send is stuck the buffer of frames fills up, and its channel ends."""
        with self._feed.watch() as frames:
            async for frame in frames:
                await self._link.send(frame)
        await self._link.close(CloseReason.TRY_AGAIN_LATER, "the console does not keep up")

    async def _ping(self) -> None:
        while True:
            await trio.sleep(self._limits.ping_s)
            await self._link.ping()

    async def _abort_at_end(self) -> None:
        """Sends are not cancelled half way, so the connection goes under those that are stuck."""
        try:
            await trio.sleep_forever()
        finally:
            await self._link.abort()
