"""The daemon of one node: brings up doors, ranks and the controller's seat, and winds them down.

Order at start: take the port (a port in use is known before weights load), read the tokenizer,
open the doors (``/live`` answers, ``/health`` says what is loading), load weights, start ranks,
take the seat, serve. At the end: refuse new work, adapt no more, let running answers end, close.
"""

from __future__ import annotations

import errno
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import structlog
import trio

from vertumnusd import __version__
from vertumnusd.admin_address import admin_socket_path
from vertumnusd.checkpoint import CheckpointError
from vertumnusd.compiled import DECISIONS
from vertumnusd.config import Config, ConfigError
from vertumnusd.control.controller import Controller
from vertumnusd.control.settings import Settings
from vertumnusd.control.transfer import TransferLimits
from vertumnusd.messages import (
    Adopted,
    Answer,
    BlocksChanged,
    ControlEvent,
    Converted,
    DrainWorker,
    Exposed,
    Failed,
    Finished,
    FromRank,
    Hold,
    Parked,
    RankDown,
    RankUp,
    Reclaim,
    Refused,
    Replicate,
    Replicated,
    Resume,
    TransferFailed,
    Withdrawn,
)
from vertumnusd.node.admin import Admin, AdminSocketError, AdminToken, admin_listener
from vertumnusd.node.administration import Administration
from vertumnusd.node.announcements import announce
from vertumnusd.node.doors import Doors
from vertumnusd.node.effects import Effects, Happened
from vertumnusd.node.feed import Feed
from vertumnusd.node.gguf_tokenizer import TokenizerError
from vertumnusd.node.hashing import chain
from vertumnusd.node.heart import Heart
from vertumnusd.node.hub import Hub
from vertumnusd.node.keys import Keys
from vertumnusd.node.limits import Limits
from vertumnusd.node.machine_settings import controller_settings, lead_settings
from vertumnusd.node.memory import plan_memory
from vertumnusd.node.metrics import Metrics
from vertumnusd.node.ranks import RankEvents, RankHost, RankStartError
from vertumnusd.node.readiness import Readiness
from vertumnusd.node.records import Records
from vertumnusd.node.requests import Requests
from vertumnusd.node.served import Served, open_served
from vertumnusd.node.systemd import Notifier

CUT_OFF_S = 1.0  # to tell clients that their answers were cut off
FIRST_TERM = 1  # one node takes the seat at once

EXIT_DONE, EXIT_FAULT, EXIT_USAGE, EXIT_PORT_IN_USE, EXIT_NO_RANKS = range(5)

log = structlog.get_logger("vertumnusd")


class PortInUse(Exception):
    """Somebody else listens where this node should."""


def serve(load: Callable[[], Config]) -> int:
    """Run the node until it is told to stop. Returns the exit status.

    ``load`` reads the configuration, now and at every SIGHUP; it raises :class:`ConfigError`.
    """
    try:
        config = load()
        log.info("vertumnusd", version=__version__, decisions=DECISIONS)
        served = open_served(config)
        sized = config if served.pace else plan_memory(config, served.model)
        log.info(
            "memory",
            kv_tokens=sized.cache.kv_tokens,
            activation_bytes=sized.rank.activation_bytes or "no limit",
        )
        log.info("model", name=served.model.name, dtype=served.model.dtype, profile=served.profile)
        keys = _load_keys(config)
        admin_token = _load_admin_token(config)
    except (ConfigError, CheckpointError) as error:
        log.error("cannot start", reason=str(error))
        return EXIT_USAGE
    daemon = Daemon(sized, config, served, keys, admin_token, load)
    try:
        return trio.run(daemon.run)
    except PortInUse as error:
        log.error("cannot start", reason=str(error))
        return EXIT_PORT_IN_USE
    except (TokenizerError, AdminSocketError) as error:
        log.error("cannot start", reason=str(error))
        return EXIT_USAGE
    except BaseExceptionGroup as group:
        failures, others = group.split(RankStartError)
        if others is not None or failures is None:
            raise
        log.error("ranks failed", reason=_first(failures))
        return EXIT_FAULT if daemon.served else EXIT_NO_RANKS


def _first(group: BaseExceptionGroup[RankStartError]) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)


def _load_keys(config: Config) -> Keys:
    if not config.node.api_key_file:
        return Keys()
    try:
        return Keys.load(Path(config.node.api_key_file))
    except (OSError, ValueError) as error:
        raise ConfigError(f"node.api_key_file = {config.node.api_key_file!r}: {error}") from error


def _load_admin_token(config: Config) -> AdminToken:
    path = config.node.admin_token_file
    try:
        return AdminToken.load(Path(path)) if path else AdminToken()
    except (OSError, ValueError) as error:
        raise ConfigError(f"node.admin_token_file = {path!r}: {error}") from error


class Daemon:
    """One node's parts, and the tasks that keep them going."""

    def __init__(
        self,
        config: Config,
        written: Config,
        served: Served,
        keys: Keys,
        admin_token: AdminToken,
        reload: Callable[[], Config],
    ) -> None:
        """``written`` is the configuration as it stands in its file; ``config`` has all sizes."""
        self._config = config
        self._written = written
        self._reload_config = reload
        self._load_tokens = served.load_tokens
        self._model = served.model
        self._metrics = Metrics()
        self._keys = keys
        self._notifier = Notifier()
        settings = controller_settings(config, served)
        self._readiness = Readiness(len(settings.workers()), lambda: self._hub.takes_work())
        self._records = Records(trio.current_time)
        self._requests = Requests(served.model, _capacity_tokens(settings), self._observe)
        self._ranks = self._rank_host(served)
        self._hub = self._hub_of(settings, served)
        self._heart = Heart(
            *(self._hub, self._ranks, self._metrics, self._notifier),
            config.cluster.ranks * config.kv_blocks,
        )
        self._requests.attach(self._hub)
        self._administration = Administration(self._hub, self._records, config.cluster.cp_degrees)
        self._feed = Feed(self._requests.cluster, trio.current_time, time.time)
        self._admin = Admin(self._feed, admin_token, self._administration)

    def _rank_host(self, served: Served) -> RankHost:
        events = RankEvents(
            up=self._on_rank_up,
            down=self._on_rank_down,
            message=self._on_rank_message,
            progress=self._on_progress,
        )
        return RankHost(self._config, served.model, served.path, events, served.pace)

    def _hub_of(self, settings: Settings, served: Served) -> Hub:
        config, block_tokens = self._config, settings.block_tokens
        return Hub(
            Controller(settings, served.prefill_time),
            lead_settings(config, served),
            Effects(
                now=trio.current_time,
                send=self._ranks.send,
                kill=partial(self._ranks.kill, reason="no progress"),
                emit=self._emit,
                report=self._report,
                illegal=self._on_illegal,
                chain=lambda tokens, salt: chain(tokens, block_tokens, salt),
            ),
            TransferLimits(config.replication.running, config.replication.bytes_per_s),
        )

    @property
    def served(self) -> bool:
        """Whether the start came to its end."""
        return self._readiness.served

    # --- the life of the daemon

    async def run(self) -> int:
        """Serve until a signal says stop. From the first moment on signals wait for their turn."""
        with (
            closing(self._notifier),
            trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals,
        ):
            listeners = await self._listen()
            tokens = await trio.to_thread.run_sync(self._load_tokens)
            doors = Doors(self._requests, tokens, self._keys, self._metrics, Limits(), self._admin)
            with admin_listener(self._admin_socket(listeners)) as admin:
                async with trio.open_nursery() as nursery:
                    await nursery.start(doors.serve, listeners)
                    nursery.start_soon(doors.serve_admin, admin)
                    nursery.start_soon(self._ranks.run)
                    nursery.start_soon(self._heart.beat)
                    nursery.start_soon(self._heart.keep_deadlines)
                    nursery.start_soon(self._take_seat, listeners)
                    status = await self._until_stopped(doors, signals)
                    nursery.cancel_scope.cancel()
        log.info("stopped", status=status)
        return status

    async def _listen(self) -> list[trio.SocketListener]:
        node = self._config.node
        try:
            return await trio.open_tcp_listeners(node.port, host=node.host, backlog=1024)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(f"port {node.port} on {node.host} is in use") from error
            raise PortInUse(f"cannot listen on {node.host}:{node.port}: {error}") from error

    def _admin_socket(self, listeners: list[trio.SocketListener]) -> Path:
        port = listeners[0].socket.getsockname()[1]
        return admin_socket_path(self._config.node.admin_socket, port)

    async def _take_seat(self, listeners: list[trio.SocketListener]) -> None:
        """Become the controller, wait until everything serves, and say so."""
        self._hub.take_seat(FIRST_TERM)
        await self._ranks.all_ready.wait()
        await self._readiness.all_exposed.wait()
        self._readiness.served = True
        self._update_readiness()
        host, port = listeners[0].socket.getsockname()[:2]
        composition = self._hub.snapshot()["composition"]
        admin = str(self._admin_socket(listeners))
        log.info("serving", url=f"http://{host}:{port}/v1", composition=composition, admin=admin)
        self._notifier.send(READY=1, STATUS=f"serving {self._model.name} as {composition}")

    async def _until_stopped(self, doors: Doors, signals: AsyncIterator[int]) -> int:
        """Obey signals: SIGTERM or SIGINT drains, a second one aborts, SIGHUP reloads."""
        async for number in signals:
            if number != signal.SIGHUP:
                break
            self._reload(doors)
        self._readiness.draining = True
        self._update_readiness()
        drain_s = self._config.node.drain_s
        log.info("draining", requests=self._requests.running(), drain_s=drain_s)
        # what is converted or copied now would only keep answers waiting
        self._hub.command(Hold(drain_s + CUT_OFF_S, "shutdown"))
        self._notifier.send(
            STOPPING=1, STATUS="draining", EXTEND_TIMEOUT_USEC=int((drain_s + 10) * 1e6)
        )
        return await self._drain(doors, drain_s, signals)

    async def _drain(self, doors: Doors, drain_s: float, signals: AsyncIterator[int]) -> int:
        status = EXIT_FAULT

        async def abort_on_signal() -> None:
            async for number in signals:
                if number != signal.SIGHUP:
                    log.warning("aborting", requests=self._requests.running())
                    nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(abort_on_signal)
            with trio.move_on_after(drain_s) as patience:
                await doors.drain()
                status = EXIT_DONE
            if patience.cancelled_caught:
                log.warning("requests cut off at shutdown", requests=self._requests.running())
            nursery.cancel_scope.cancel()
        if status != EXIT_DONE:
            self._requests.cut_off("this node is shutting down")
            with trio.move_on_after(CUT_OFF_S):
                await doors.drain()
        return status

    def _reload(self, doors: Doors) -> None:
        """SIGHUP: check the configuration file, then take over its API keys."""
        if self.served:  # READY, below, must not come before its time
            self._notifier.send(RELOADING=1, MONOTONIC_USEC=time.monotonic_ns() // 1000)
        try:
            config = self._reload_config()
            doors.replace_keys(_load_keys(config))
        except ConfigError as error:
            log.error("configuration not reloaded", reason=str(error))
        else:
            changed = config != self._written
            log.info("API keys reloaded", other_changes_need_a_restart=changed)
        if self.served:
            self._notifier.send(READY=1)

    # --- what the parts tell

    def _on_progress(self, text: str) -> None:
        self._readiness.loading = text
        self._update_readiness()
        self._notifier.send(STATUS=text)

    def _on_rank_up(self, event: RankUp) -> None:
        self._feed.happened(event)
        self._hub.rank_up(event)
        self._readiness.happened(event)
        self._update_readiness()

    def _on_rank_down(self, event: RankDown) -> None:
        self._feed.happened(event)
        self._hub.rank_down(event)
        self._readiness.happened(event)
        self._update_readiness()

    def _on_rank_message(self, message: FromRank) -> None:
        self._metrics.observe_rank(message)
        self._hub.from_rank(message)

    def _report(self, happened: Happened) -> None:
        block_tokens = self._config.cache.block_tokens
        if isinstance(happened, Replicated | TransferFailed):
            self._metrics.observe_copy_ended(happened, block_tokens)
            return
        announce(happened)
        self._feed.happened(happened)
        if isinstance(happened, Refused):
            return
        self._administration.report(happened)
        self._records.report(happened)
        match happened:
            case Exposed() | Withdrawn():
                self._readiness.happened(happened)
            case Converted():
                self._metrics.observe_converted(happened)
            case Replicate():
                self._metrics.observe_copy(happened)
            case Reclaim():
                self._metrics.observe_reclaim(happened, block_tokens)
        if isinstance(happened, Exposed | Withdrawn | DrainWorker | Resume | Converted):
            self._update_readiness()

    def _emit(self, request: str, answer: Answer) -> None:
        self._records.answered(request, answer)
        self._requests.emit(request, answer)

    def _on_illegal(self, event: ControlEvent, reason: str) -> None:
        """Nonsense costs the rank that sent it its life, and nothing else."""
        log.error("illegal event", kind=type(event).__name__, reason=reason)
        if isinstance(event, BlocksChanged | Adopted | Parked):
            self._ranks.kill(event.rank, reason)

    def _update_readiness(self) -> None:
        self._requests.unready = self._readiness.reason()

    def _observe(self, event: Finished | Failed) -> None:
        if isinstance(event, Finished):
            self._metrics.observe_finished(event)
        else:
            self._metrics.observe_failed(event)


def _capacity_tokens(settings: Settings) -> int:
    """The longest prompt and answer that a worker of the largest degree and a decode rank hold."""
    return min(settings.span_blocks, settings.decode_kv_blocks) * settings.block_tokens
