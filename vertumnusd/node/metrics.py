"""What this node tells Prometheus, in a registry of its own.

The doors feed everything about requests; the daemon feeds the rest through the verbs below. Labels
come from small closed sets, and every counter exists at 0 from the start, so that a rate over it is
right for its first event too.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from vertumnusd.messages import Failed, Finished

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

REJECTIONS = (
    "server_is_overloaded",
    "service_unavailable",
    "rate_limit_exceeded",
    "websocket_stream_limit_reached",
    "connection_limit_reached",
    "other",
)
OUTCOMES = ("stop", "length", "prefilled", "failed", "cancelled")

# Prefill of a long prompt takes minutes, a cached short one milliseconds.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
SHORT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class Metrics:
    """Metrics of one node. Not shared with the library's global registry: tests run many nodes."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._create_request_metrics()
        self._create_node_metrics()

    def _create_request_metrics(self) -> None:
        registry = self.registry
        self._ttft = Histogram(
            "vertumnus_time_to_first_token_seconds",
            "From a request's arrival to its first token, queue included.",
            buckets=SECONDS,
            registry=registry,
        )
        self._queue = Histogram(
            "vertumnus_request_queue_time_seconds",
            "From a request's arrival to the start of its prefill.",
            buckets=SECONDS,
            registry=registry,
        )
        self._prefill = Histogram(
            "vertumnus_request_prefill_time_seconds",
            "Prefill time of a request.",
            buckets=SECONDS,
            registry=registry,
        )
        self._e2e = Histogram(
            "vertumnus_e2e_request_latency_seconds",
            "From a request's arrival to the end of its answer.",
            buckets=SECONDS,
            registry=registry,
        )
        self._placement = Histogram(
            "vertumnus_placement_seconds",
            "From a request's submission to its placement on a worker.",
            buckets=SHORT_SECONDS,
            registry=registry,
        )
        self._prompt_tokens = Counter(
            "vertumnus_prompt_tokens", "Input tokens of finished requests.", registry=registry
        )
        self._cached_tokens = Counter(
            "vertumnus_prompt_tokens_cached",
            "Input tokens of finished requests that came from a prefix cache.",
            registry=registry,
        )
        self._generation_tokens = Counter(
            "vertumnus_generation_tokens", "Tokens drawn for finished requests.", registry=registry
        )
        self._requests = Counter(
            "vertumnus_requests",
            "Requests that were accepted, by how they ended.",
            ["outcome"],
            registry=registry,
        )
        self._rejections = Counter(
            "vertumnus_admission_rejections",
            "Requests and connections that were turned away.",
            ["reason"],
            registry=registry,
        )
        for outcome in OUTCOMES:
            self._requests.labels(outcome)
        for reason in REJECTIONS:
            self._rejections.labels(reason)

    def _create_node_metrics(self) -> None:
        registry = self.registry
        self._running = Gauge(
            "vertumnus_num_requests_running", "Requests on a worker or decoding.", registry=registry
        )
        self._waiting = Gauge(
            "vertumnus_num_requests_waiting", "Requests that wait for a worker.", registry=registry
        )
        self._kv_usage = Gauge(
            "vertumnus_kv_cache_usage_perc",
            "Share of this node's KV blocks in use, 0 to 1.",
            registry=registry,
        )
        self._worker = Gauge(
            "vertumnus_worker_info",
            "1 for every worker in service.",
            ["worker", "degree"],
            registry=registry,
        )
        self._term = Gauge("vertumnus_controller_term", "Current term.", registry=registry)
        self._epoch = Gauge("vertumnus_controller_epoch", "Current epoch.", registry=registry)
        self._loop_lag = Histogram(
            "vertumnus_event_loop_lag_seconds",
            "How late the node's event loop woke up.",
            buckets=SHORT_SECONDS,
            registry=registry,
        )

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

    def observe_ended(self, outcome: str) -> None:
        """A request that was accepted and did not get its whole answer: failed or cancelled."""
        self._requests.labels(outcome).inc()

    def rejected(self, reason: str) -> None:
        self._rejections.labels(reason if reason in REJECTIONS else "other").inc()

    def set_requests(self, running: int, waiting: int) -> None:
        self._running.set(running)
        self._waiting.set(waiting)

    def set_kv_usage(self, share: float) -> None:
        self._kv_usage.set(share)

    def set_workers(self, workers: Iterable[tuple[str, int]]) -> None:
        """Replace the list of workers in service by these (name, degree)."""
        self._worker.clear()
        for name, degree in workers:
            self._worker.labels(name, str(degree)).set(1)

    def set_term_epoch(self, term: int, epoch: int) -> None:
        self._term.set(term)
        self._epoch.set(epoch)

    def loop_lag(self, lag_s: float) -> None:
        self._loop_lag.observe(lag_s)

    def render(self) -> bytes:
        """The text that a scrape gets."""
        return generate_latest(self.registry)
