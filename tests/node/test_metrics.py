"""What a scrape shows."""

from __future__ import annotations

import re
from pathlib import Path

from vertumnusd.messages import (
    HASH_BYTES,
    CopyReleased,
    Failed,
    Finished,
    Installed,
    Pulled,
    Reclaim,
    Replicate,
    Replicated,
    TransferFailed,
)
from vertumnusd.node.metrics import REJECTIONS, Metrics


def value(metrics: Metrics, sample: str) -> float:
    lines = metrics.render().decode().splitlines()
    (line,) = (line for line in lines if line.startswith(sample + " "))
    return float(line.split()[-1])


def finished(**changes: object) -> Finished:
    fields = {
        "reason": "stop",
        "worker": "CP1[0]",
        "degree": 1,
        "input_tokens": 100,
        "cached_tokens": 60,
        "output_tokens": 7,
        "queue_s": 0.3,
        "predicted_s": 1.0,
        "prefill_s": 0.9,
        "ttft_s": 90.0,
        "handoff_ttft_s": 90.1,
        "total_s": 95.0,
    }
    return Finished(**(fields | changes))  # type: ignore[arg-type]


def test_a_finished_request_is_counted_and_timed() -> None:
    metrics = Metrics()
    metrics.observe_finished(finished())
    assert value(metrics, "vertumnus_prompt_tokens_total") == 100
    assert value(metrics, "vertumnus_prompt_tokens_cached_total") == 60
    assert value(metrics, "vertumnus_generation_tokens_total") == 7
    assert value(metrics, 'vertumnus_requests_total{outcome="stop"}') == 1
    bucket = 'vertumnus_time_to_first_token_seconds_bucket{le="%s"}'
    assert value(metrics, bucket % "80.0") == 0
    assert value(metrics, bucket % "160.0") == 1


def test_failures_are_rejections_or_failed_requests() -> None:
    metrics = Metrics()
    metrics.observe_failed(Failed(429, "server_is_overloaded", "full"))
    metrics.observe_failed(Failed(500, "server_error", "lost"))
    rejected = 'vertumnus_admission_rejections_total{reason="server_is_overloaded"}'
    assert value(metrics, rejected) == 1
    assert value(metrics, 'vertumnus_requests_total{outcome="failed"}') == 1


def test_labels_are_bounded_whatever_the_reason() -> None:
    metrics = Metrics()
    for number in range(50):
        metrics.rejected(f"reason {number}")
    lines = metrics.render().decode().splitlines()
    shown = [line for line in lines if line.startswith("vertumnus_admission_rejections_total{")]
    assert len(shown) == len(REJECTIONS)
    assert value(metrics, 'vertumnus_admission_rejections_total{reason="other"}') == 50


def test_workers_that_left_are_not_shown() -> None:
    metrics = Metrics()
    metrics.set_workers([("CP2[0-1]", 2), ("CP1[2]", 1)])
    metrics.set_workers([("CP2[0-1]", 2)])
    text = metrics.render().decode()
    assert 'vertumnus_worker_info{degree="2",worker="CP2[0-1]"} 1.0' in text
    assert "CP1[2]" not in text


def test_gauges_of_the_node() -> None:
    metrics = Metrics()
    metrics.set_term_epoch(3, 12)
    metrics.set_requests(running=2, waiting=5)
    metrics.set_kv_usage(0.25)
    metrics.loop_lag(0.002)
    assert value(metrics, "vertumnus_controller_term") == 3
    assert value(metrics, "vertumnus_controller_epoch") == 12
    assert value(metrics, "vertumnus_num_requests_waiting") == 5
    assert value(metrics, "vertumnus_kv_cache_usage_perc") == 0.25
    assert value(metrics, "vertumnus_event_loop_lag_seconds_count") == 1


def copy(transfer: int, kind: str) -> Replicate:
    """Of the last three of five blocks."""
    return Replicate(1, transfer, kind, bytes(5 * HASH_BYTES), 2, 0, 1, 1.0, 1, 1)


def test_copies_count_once_they_are_installed_and_failed_ones_never() -> None:
    metrics = Metrics()
    for transfer, kind in ((1, "intra"), (2, "fetch"), (3, "fetch")):
        metrics.observe_copy(copy(transfer, kind))
    assert value(metrics, "vertumnus_replicated_tokens_total") == 0
    metrics.observe_copy_ended(Replicated(2), 16)
    metrics.observe_copy_ended(TransferFailed(1, "no room"), 16)
    assert value(metrics, 'vertumnus_replications_total{kind="fetch"}') == 1
    assert value(metrics, 'vertumnus_replications_total{kind="intra"}') == 0
    assert value(metrics, "vertumnus_replicated_tokens_total") == 3 * 16


def test_bytes_that_ranks_copied_count_also_where_the_copy_was_given_up() -> None:
    metrics = Metrics()
    for message in (
        Installed(1, 1, 7, 4096, 0.1),
        CopyReleased(1, 1, 8, kv_bytes=1024),
        Pulled(4, "r1", 6, 512, 0.1),
    ):
        metrics.observe_rank(message)
    assert value(metrics, 'vertumnus_kv_copied_bytes_total{to="prefill"}') == 5120
    assert value(metrics, 'vertumnus_kv_copied_bytes_total{to="decode"}') == 512


def test_what_is_reclaimed_counts_in_tokens() -> None:
    metrics = Metrics()
    metrics.observe_reclaim(Reclaim(1, 0, bytes(4 * HASH_BYTES), (1,)), 16)
    assert value(metrics, "vertumnus_reclaimed_tokens_total") == 4 * 16


def test_the_documentation_names_what_there_is() -> None:
    page = Path(__file__).parents[2] / "docs" / "metrics.md"
    rows = [line.split("|")[1] for line in page.read_text().splitlines() if line.startswith("| `")]
    names = [name for row in rows for name in re.findall(r"`(\w+?)(?:_total)?(?:\{.*?\})?`", row)]
    there_are = {family.name.removeprefix("vertumnus_") for family in Metrics().registry.collect()}
    assert sorted(names) == sorted(there_are)
