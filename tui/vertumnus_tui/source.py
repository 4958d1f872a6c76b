"""Where a console's model comes from: a node's feed, or a recording."""

from __future__ import annotations

import asyncio
from typing import Protocol

from vertumnus_tui.link import Address, Link
from vertumnus_tui.model import Model
from vertumnus_tui.playback import Player, Recorder, RecordingError
from vertumnus_tui.status import Connecting, Live, Replay, Status
from vertumnusd.messages import FeedFrame

TICK_S = 0.25


class Source(Protocol):
    """``run`` moves the model on until it is cancelled."""

    @property
    def model(self) -> Model: ...

    @property
    def status(self) -> Status: ...

    async def run(self) -> None: ...


class LiveSource:
    """Follows a node, and keeps the last picture while it is away."""

    def __init__(self, address: Address, recorder: Recorder | None = None) -> None:
        self.address = address
        self.model = Model()
        self.status: Status = Connecting(str(address))
        self._recorder = recorder
        self._recording = "recording" if recorder is not None else ""

    async def run(self) -> None:
        try:
            await Link(self.address, self._take, self._tell).run()
        finally:
            if self._recorder is not None:
                self._recorder.close()

    def _take(self, frame: FeedFrame) -> None:
        self.model.apply(frame)
        if self._recorder is None:
            return
        try:
            self._recorder.take(self.model, frame.events)
        except RecordingError as error:
            self._recorder.close()
            self._recorder = None
            self._recording = f"recording failed: {error}"
            self._tell(Live())

    def _tell(self, status: Status) -> None:
        self.status = Live(self._recording) if isinstance(status, Live) else status


class ReplaySource:
    """Plays a recording."""

    def __init__(self, player: Player) -> None:
        self.player = player

    @property
    def model(self) -> Model:
        return self.player.model

    @property
    def status(self) -> Status:
        player = self.player
        return Replay(player.at_s, player.length_s, player.speed, player.paused, player.trouble)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        while True:
            await asyncio.sleep(TICK_S)
            now = loop.time()
            self.player.pass_time(now - before)
            before = now
