"""A whole daemon over fake ranks, on virtual time: doors, hub, controller and signals are real.

``FakeHost`` stands where the supervisor of rank processes does. Its ranks obey at once, but for the
messages that a test holds back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import trio
from fake_ranks import BLOCK, LAYERS, FakeDecodeRank, FakePrefillRank

from vertumnusd.config import (
    CacheConfig,
    ClusterConfig,
    Config,
    NodeConfig,
    PlacementConfig,
    RankConfig,
)
from vertumnusd.control.prefill_time import Coefficients, PrefillTime
from vertumnusd.control.settings import ReconfigurationSettings
from vertumnusd.messages import RankUp, Reserve
from vertumnusd.node.served import Served, byte_tokens, paced_model

RANKS = 4
TOKEN_S = 0.05  # between two beats of the decode rank


def configuration(**node: Any) -> Config:
    return Config(
        node=NodeConfig(**node),
        cluster=ClusterConfig(ranks=RANKS, cp_degrees=(1, 2), composition="2CP2"),
        cache=CacheConfig(block_tokens=BLOCK, kv_tokens=400, decode_kv_tokens=4_000),
        placement=PlacementConfig(fetch_bytes_per_s=1e15),
        rank=RankConfig(progress_timeout_s=60.0),
    )


def served(adaptation: ReconfigurationSettings) -> Served:
    return Served(
        path="",
        model=msgspec.structs.replace(paced_model("fake"), layers=LAYERS),
        load_tokens=byte_tokens,
        prefill_time=PrefillTime(Coefficients(0.01, 0, 0, 0.01, 0)),
        adaptation=adaptation,
        profile="none",
    )


def nothing(_message: Any) -> bool:
    return False


class FakeHost:
    """Implements what the daemon needs of ``ranks.RankHost``; also the fake ranks' world.

    ``held`` says which messages of ranks wait to be heard, ``lost`` which never are; ``copying``:
    whether ranks copy.
    """

    def __init__(self, config: Config, _model: Any, _path: str, events: Any, _pace: Any) -> None:
        blocks = {"kv_blocks": config.kv_blocks, "decode_kv_blocks": config.decode_kv_blocks}
        self.settings = SimpleNamespace(**blocks)
        self.pools: list[dict[int, bytes | str]] = [{} for _ in range(RANKS)]
        self.chains: dict[str, bytes] = {}
        self.all_ready = trio.Event()
        self.held: Callable[[Any], bool] = nothing
        self.lost: Callable[[Any], bool] = nothing
        self.copying = True
        self._events = events
        self._inbox: dict[int, deque] = {rank: deque() for rank in range(RANKS + 1)}
        self._prefill = [FakePrefillRank(self, rank) for rank in range(RANKS)]  # type: ignore[arg-type]
        self._decode = FakeDecodeRank(self, RANKS)  # type: ignore[arg-type]

    def send(self, rank: int, message: Any) -> None:
        self._inbox[rank].append(message)

    def kill(self, rank: int, reason: str) -> None:
        raise AssertionError(f"rank {rank} is killed: {reason}")

    def tick(self) -> None:
        pass

    async def run(self) -> None:
        everyone = [*self._prefill, self._decode]
        for rank in everyone:
            kind = "decode" if rank is self._decode else "prefill"
            self._events.up(RankUp(rank.rank, kind, 1))
        self.all_ready.set()
        while True:
            while sum(self._turn(rank) for rank in everyone):
                await trio.lowlevel.checkpoint()
            await trio.sleep(TOKEN_S)
            self._decode.beat()

    def _turn(self, rank: FakePrefillRank | FakeDecodeRank) -> bool:
        """One message in, one out."""
        busy = self._obey(rank)
        if not rank.out or self.held(rank.out[0]):
            return busy
        message = rank.out.popleft()
        if not self.lost(message):
            self._events.message(message)
        return True

    def _obey(self, rank: FakePrefillRank | FakeDecodeRank) -> bool:
        if not self._inbox[rank.rank]:
            copies = self.copying and isinstance(rank, FakePrefillRank)
            return copies and rank.copy_piece()
        message = self._inbox[rank.rank].popleft()
        if isinstance(message, Reserve):
            self.chains[message.request] = message.chain
        rank.obey(message)
        return True
