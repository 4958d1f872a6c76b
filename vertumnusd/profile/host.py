"""The rank processes that are measured: started as the daemon starts them, spoken to one at a time.

A profile has nothing to do while a rank computes, so its end of the sockets is plain and blocking.
Anything that a rank reports as broken ends the profile.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from vertumnusd.config import Config
from vertumnusd.frames import FrameReader, write_frame
from vertumnusd.messages import (
    FromHelper,
    FromProbe,
    FromRank,
    Loaded,
    LoadModel,
    LoadProgress,
    Message,
    ModelInfo,
    Probed,
    RankFault,
    RankStart,
    Ready,
    Refused,
    ReserveFailed,
    StepFailed,
)
from vertumnusd.node.memory import MemoryFiles
from vertumnusd.node.rank_start import rank_start

RANKS, PROBES = 1, 2  # generations: the groups of either have names of their own
M = TypeVar("M", bound=Message)


class HostError(Exception):
    """A process cannot go on, or did not answer in time; the message has its own reason."""


class StartError(HostError):
    """The ranks never became ready."""


class Child:
    """One process and our end of its socket, which is its life line."""

    def __init__(self, name: str, module: str, inherit: Sequence[int], receives: Any) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, "--fd", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), *inherit],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # a terminal's ^C is for us; we end the process
            )
        self.name = name
        self.pid = self._process.pid
        self._socket = ours
        self._reader = FrameReader(ours)
        self._decode: Callable[[bytes], Message] = msgspec.msgpack.Decoder(receives).decode

    def send(self, message: Message) -> None:
        try:
            write_frame(self._socket, msgspec.msgpack.encode(message))
        except OSError as error:
            raise HostError(f"{self.name} is gone") from error

    def receive(self, kind: type[M], patience_s: float) -> M:
        """The next message of this kind; others are skipped. Raises HostError."""
        self._socket.settimeout(patience_s)
        while True:
            try:
                frame = self._reader.read()
            except TimeoutError as error:
                late = f"{self.name} sent no {kind.__name__} within {patience_s:g} s"
                raise HostError(late) from error
            if frame is None:
                raise HostError(f"{self.name} ended with status {self._process.wait()}")
            match self._decode(frame):
                case RankFault() | StepFailed() as failure:
                    raise HostError(f"{self.name}: {failure.reason}")
                case ReserveFailed() | Refused() as failure:
                    raise HostError(f"{self.name} answered {failure}")
                case message if isinstance(message, kind):
                    return message

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._socket.close()


@dataclass(frozen=True, slots=True)
class Host:
    """Prefill ranks that are ready, in their order."""

    config: Config
    loaded: Loaded
    ranks: list[Child]
    _files: MemoryFiles

    @property
    def model(self) -> ModelInfo:
        return self.loaded.model

    def probe(self, patience_s: float) -> list[Probed]:
        """What ranks cost each other, by rank; the KV in the pools is lost. Raises HostError."""
        with ExitStack() as stack:
            probes = [
                _started(stack, f"probe {rank}", "vertumnusd.rank.probe", self._files, FromProbe)
                for rank in range(self.config.cluster.ranks)
            ]
            for rank, child in enumerate(probes):
                child.send(_start(self.config, self.loaded, self._files, rank, PROBES))
            return [child.receive(Probed, patience_s) for child in probes]


@contextmanager
def running_host(
    config: Config, model: ModelInfo, path: Path, say: Callable[[str], None]
) -> Iterator[Host]:
    """Load the weights, start helper and prefill ranks; end them with the block.

    ``say`` hears how far loading is. Raises StartError.
    """
    with ExitStack() as stack:
        try:
            host = _start_host(stack, config, model, path, say)
        except HostError as error:
            raise StartError(str(error)) from error
        yield host


def _start_host(
    stack: ExitStack, config: Config, model: ModelInfo, path: Path, say: Callable[[str], None]
) -> Host:
    files = MemoryFiles.create(config, model)
    stack.callback(files.close)
    ranks = [
        _started(stack, f"rank {rank}", "vertumnusd.rank", files, FromRank)
        for rank in range(config.cluster.ranks)
    ]
    helper = _started(stack, "the host helper", "vertumnusd.rank.host_helper", files, FromHelper)
    host = config.node.rank_host
    helper.send(LoadModel(str(path), model.name, model.dtype, files.weights, host))
    loaded = _loaded(helper, config.rank.start_timeout_s, say)
    say("starting ranks")
    for rank, child in enumerate(ranks):
        child.send(_start(config, loaded, files, rank, RANKS))
    for child in ranks:
        child.receive(Ready, config.rank.start_timeout_s)
    return Host(config, loaded, ranks, files)


def _started(stack: ExitStack, name: str, module: str, files: MemoryFiles, receives: Any) -> Child:
    child = Child(name, module, files.all(), receives)
    stack.callback(child.end)
    return child


def _start(
    config: Config, loaded: Loaded, files: MemoryFiles, rank: int, generation: int
) -> RankStart:
    root = rank - rank % max(config.cluster.cp_degrees)
    return rank_start(config, loaded, files, rank, root, generation)


def _loaded(helper: Child, patience_s: float, say: Callable[[str], None]) -> Loaded:
    while True:
        # Whichever comes: ``patience_s`` is for the next sign of life, not for the whole load.
        match helper.receive(Message, patience_s):
            case LoadProgress() as progress:
                percent = 100 * progress.loaded_bytes // max(1, progress.total_bytes)
                say(f"loading weights: {percent} %")
            case Loaded() as loaded:
                return loaded
