"""What this node tells Prometheus, in a registry of its own.

The doors feed everything about requests; the daemon feeds the rest through the verbs below. Labels
come from small closed sets, and every counter exists at 0 from the start, so that a rate over it is
right for its first event too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from vertumnusd.messages import (
    HASH_BYTES,
    Converted,
    CopyReleased,
    Failed,
    Finished,
    FromRank,
    Installed,
    Pulled,
    Reclaim,
    Replicate,
    Replicated,
    TransferFailed,
)

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

PREFIX = "vertumnus_"

REJECTIONS = (
    "server_is_overloaded",
    "service_unavailable",
    "rate_limit_exceeded",
    "websocket_stream_limit_reached",
    "connection_limit_reached",
    "other",
)
COPIES = ("intra", "inter", "fetch")
OUTCOMES = ("stop", "length", "prefilled", "failed", "cancelled")

# Prefill of a long prompt takes minutes, a cached short one milliseconds.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
SHORT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
STAGE_SECONDS = (*SHORT_SECONDS, 5, 10, 30)


class Metrics:
    """Metrics of one node. Not shared with the library's global registry: tests run many nodes."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._create_request_metrics()
        self._create_node_metrics()
        self._create_controller_metrics()

    def _create_request_metrics(self) -> None:
        self._ttft = self._histogram(
            "time_to_first_token_seconds", "From arrival to the first token, queue included."
        )
        self._queue = self._histogram(
            "request_queue_time_seconds", "From arrival to the start of the prefill."
        )
        self._prefill = self._histogram("request_prefill_time_seconds", "Time of the prefill.")
        self._e2e = self._histogram(
            "e2e_request_latency_seconds", "From arrival to the end of the answer."
        )
        self._placement = self._histogram(
            "placement_seconds", "From submission to a place on a worker.", SHORT_SECONDS
        )
        self._prompt_tokens = self._counter("prompt_tokens", "Input tokens of finished requests.")
        self._cached_tokens = self._counter(
            "prompt_tokens_cached", "Those of them that came from a prefix cache."
        )
        self._generation_tokens = self._counter(
            "generation_tokens", "Tokens drawn for finished requests."
        )
        self._requests = self._counter(
            "requests", "Accepted requests, by how they ended.", outcome=OUTCOMES
        )
        self._rejections = self._counter(
            "admission_rejections", "Requests and connections turned away.", reason=REJECTIONS
        )

    def _create_node_metrics(self) -> None:
        self._running = self._gauge("num_requests_running", "Requests on a worker or decoding.")
        self._waiting = self._gauge("num_requests_waiting", "Requests that wait for a worker.")
        self._kv_usage = self._gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.")
        self._term = self._gauge("controller_term", "Current term.")
        self._epoch = self._gauge("controller_epoch", "Current epoch.")
        self._worker = self._gauge(
            "worker_info", "1 for every worker in service.", "worker", "degree"
        )
        self._serving: set[tuple[str, int]] = set()  # those that it shows
        self._copied_bytes = self._counter(
            "kv_copied_bytes",
            "KV that ranks copied: between prefill ranks, and to decode ranks.",
            to=("prefill", "decode"),
        )
        self._loop_lag = self._histogram(
            "event_loop_lag_seconds", "How late the event loop woke up.", SHORT_SECONDS
        )

    def _create_controller_metrics(self) -> None:
        self._reconfigurations = self._counter(
            "reconfigurations",
            "Splits and merges that ended.",
            kind=("split", "merge"),
            result=("exposed", "rolled back"),
        )
        stages = Histogram(
            PREFIX + "reconfiguration_seconds",
            "Splits and merges: until the workers were drained, then until the new ones served.",
            ["stage"],
            buckets=STAGE_SECONDS,
            registry=self.registry,
        )
        self._replications = self._counter(
            "replications", "Copies of prefixes that were installed.", kind=COPIES
        )
        self._replicated_tokens = self._counter("replicated_tokens", "Tokens of these copies.")
        self._reclaimed_tokens = self._counter(
            "reclaimed_tokens", "Tokens that the controller had deleted."
        )
        self._copies: dict[int, Replicate] = {}  # under way
        self._drain_s, self._switch_s = stages.labels("drain"), stages.labels("switch")

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...] = SECONDS) -> Histogram:
        return Histogram(PREFIX + name, what, buckets=buckets, registry=self.registry)

    def _counter(self, name: str, what: str, **values: tuple[str, ...]) -> Counter:
        """A counter with labels, and all the values that each label can have."""
        counter = Counter(PREFIX + name, what, list(values), registry=self.registry)
        for labels in itertools.product(*values.values()) if values else ():
            counter.labels(*labels)
        return counter

    def _gauge(self, name: str, what: str, *labels: str) -> Gauge:
        return Gauge(PREFIX + name, what, labels, registry=self.registry)

    def observe_placed(self, placement_s: float) -> None:
        self._placement.observe(placement_s)

    def observe_finished(self, finished: Finished) -> None:
        """A request that got its whole answer."""
        self._ttft.observe(finished.ttft_s)
        self._queue.observe(finished.queue_s)
        self._prefill.observe(finished.prefill_s)
        self._e2e.observe(finished.total_s)
        self._prompt_tokens.inc(finished.input_tokens)
        self._cached_tokens.inc(finished.cached_tokens)
        self._generation_tokens.inc(finished.output_tokens)
        self._requests.labels(finished.reason).inc()

    def observe_failed(self, failed: Failed) -> None:
        """A request that the node turned away, or accepted and could not finish."""
        if failed.status in (429, 503):
            self.rejected(failed.code)
        else:
            self.observe_ended("failed")

    def observe_converted(self, converted: Converted) -> None:
        """A split or merge ended, one way or the other."""
        self._reconfigurations.labels(converted.kind, converted.outcome).inc()
        self._drain_s.observe(converted.drain_s)
        if converted.outcome == "exposed":
            self._switch_s.observe(converted.switch_s)

    def observe_copy(self, command: Replicate) -> None:
        """A copy begins; it counts once it is installed."""
        self._copies[command.transfer] = command

    def observe_copy_ended(self, event: Replicated | TransferFailed, block_tokens: int) -> None:
        command = self._copies.pop(event.transfer, None)
        if command is not None and isinstance(event, Replicated):
            blocks = len(command.chain) // HASH_BYTES - command.first_block
            self._replications.labels(command.kind).inc()
            self._replicated_tokens.inc(blocks * block_tokens)

    def observe_rank(self, message: FromRank) -> None:
        """A rank said something: also a copy that was given up has moved bytes."""
        match message:
            case Installed() | CopyReleased():
                self._copied_bytes.labels("prefill").inc(message.kv_bytes)
            case Pulled():
                self._copied_bytes.labels("decode").inc(message.kv_bytes)

    def observe_reclaim(self, command: Reclaim, block_tokens: int) -> None:
        self._reclaimed_tokens.inc(len(command.blocks) // HASH_BYTES * block_tokens)

    def observe_ended(self, outcome: str) -> None:
        """A request that was accepted and did not get its whole answer: failed or cancelled."""
        self._requests.labels(outcome).inc()

    def show(self, view: Mapping[str, Any], kv_blocks: int) -> None:
        """The hub's snapshot of now; ``kv_blocks``: of all prefill ranks."""
        self.set_term_epoch(view["term"], view["epoch"])
        serving = [w for w in view["workers"] if w["state"] == "serving"]
        self.set_workers((w["name"], w["degree"]) for w in serving)
        waiting = sum(r["phase"] == "waiting" for r in view["requests"])
        self.set_requests(len(view["requests"]) - waiting, waiting)
        free = sum(home["free_blocks"] for home in view["homes"])
        self.set_kv_usage(1 - free / kv_blocks)

    def rejected(self, reason: str) -> None:
        self._rejections.labels(reason if reason in REJECTIONS else "other").inc()

    def set_requests(self, running: int, waiting: int) -> None:
        self._running.set(running)
        self._waiting.set(waiting)

    def set_kv_usage(self, share: float) -> None:
        self._kv_usage.set(share)

    def set_workers(self, workers: Iterable[tuple[str, int]]) -> None:
        """Replace the list of workers in service by these (name, degree)."""
        serving = set(workers)
        for name, degree in self._serving - serving:
            self._worker.remove(name, str(degree))
        for name, degree in serving - self._serving:
            self._worker.labels(name, str(degree)).set(1)
        self._serving = serving

    def set_term_epoch(self, term: int, epoch: int) -> None:
        self._term.set(term)
        self._epoch.set(epoch)

    def loop_lag(self, lag_s: float) -> None:
        self._loop_lag.observe(lag_s)

    def render(self) -> bytes:
        """The text that a scrape gets."""
        return generate_latest(self.registry)
