"""The mix of requests that κ is measured with."""

from __future__ import annotations

import json

import numpy as np
import pytest

from vertumnusd.config import ConfigError
from vertumnusd.control.prefill_time import Coefficients, PrefillTime
from vertumnusd.control.settings import SloClass
from vertumnusd.profile.load import check_load, endless_hits, longest_in_time, mix, rows_of
from vertumnusd.simulate.traces import TraceRow

ROWS = [
    TraceRow(0, 1024, (1, 2)),
    TraceRow(1, 1536, (1, 2, 3)),
    TraceRow(2, 1024, (1, 4)),
    TraceRow(3, 100, ()),
]


def test_an_endless_cache_holds_the_leading_blocks_seen_before():
    assert endless_hits(ROWS) == [0, 1024, 512, 0]


def test_a_load_that_fits_is_taken_as_it_is():
    found = mix("rows", ROWS, 4, 8192, 16)
    assert found.factor == 1.0
    assert sorted(found.requests) == [(100, 0), (512, 512), (512, 1024), (1024, 0)]


def test_a_load_too_long_is_shrunk_by_one_factor():
    rows = rows_of("conversation")
    found = mix("conversation", rows, 200, 500, 16)
    lengths = [sum(request) for request in found.requests]
    assert np.quantile(lengths, 0.99) == pytest.approx(500, rel=0.1)
    assert found.mean_tokens == pytest.approx(
        found.factor * np.mean([row.input_tokens for row in rows]), rel=0.1
    )


def test_a_hit_is_whole_blocks_and_leaves_a_token_to_compute():
    rows = [TraceRow(0, 512, (1,)), TraceRow(1, 512, (1,))]
    assert sorted(mix("rows", rows, 2, 64, 16).requests) == [(16, 48), (64, 0)]


def test_the_longest_input_in_time_takes_half_of_its_limit():
    prefill_time = PrefillTime(Coefficients(0.0, 0.0, 0.0, 0.001, 0.0))
    slo = (SloClass(100, 0.01), SloClass(1000, 1.0), SloClass(float("inf"), 1.0))
    assert longest_in_time(prefill_time, 1, slo, 8192) == pytest.approx(500, rel=0.03)
    assert longest_in_time(prefill_time, 2, slo, 8192) == pytest.approx(1000, rel=0.03)


def test_no_input_may_be_in_time():
    prefill_time = PrefillTime(Coefficients(1.0, 0.0, 0.0, 0.001, 0.0))
    assert longest_in_time(prefill_time, 1, (SloClass(float("inf"), 1.0),), 8192) == 0


def test_a_trace_file_is_a_load(tmp_path):
    path = tmp_path / "t.jsonl"
    line = {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}
    path.write_text(json.dumps(line))
    check_load(str(path))
    assert rows_of(str(path)) == [TraceRow(0, 600, (1,))]


def test_an_unknown_load_names_the_known_ones():
    with pytest.raises(ConfigError, match=r"--load none: .*conversation"):
        check_load("none")


def test_a_broken_trace_is_named_with_its_line(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text("{}\n")
    with pytest.raises(ConfigError, match=r"--load: .*t\.jsonl:1"):
        rows_of(str(path))
