from __future__ import annotations

import json
import lzma

import pytest

from vertumnusd.simulate.traces import TraceError, TraceRow, arrivals, halves, read_trace, span_s

GOOD = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}


def write(path, *lines):
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts))
    return path


def test_rows_are_read_in_order_of_time_with_their_complete_blocks(tmp_path):
    path = write(tmp_path / "t.jsonl", {**GOOD, "timestamp": 9}, {**GOOD, "hash_ids": [1, 7]})
    assert read_trace(path) == [TraceRow(0, 600, (1,)), TraceRow(9, 600, (1,))]


def test_a_compressed_trace_reads_like_a_plain_one(tmp_path):
    plain = write(tmp_path / "t.jsonl", GOOD)
    packed = tmp_path / "t.jsonl.xz"
    packed.write_bytes(lzma.compress(plain.read_bytes()))
    assert read_trace(packed) == read_trace(plain)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "truncated"),
        ({**GOOD, "timestamp": -1}, "timestamp"),
        ({**GOOD, "input_length": 0}, "input_length"),
        ({**GOOD, "input_length": "many"}, "input_length"),
        ({**GOOD, "hash_ids": [1, "x"]}, "hash_ids"),
        ({**GOOD, "hash_ids": [1, -2]}, "hash_ids"),
        ({**GOOD, "hash_ids": [1]}, "1 hash_ids for input_length 600: 2 are expected"),
        ({"timestamp": 0, "input_length": 600}, "hash_ids"),
        (
            {**GOOD, "input_length": 1024, "hash_ids": [7, 1]},
            "hash id 1 follows 7, in line 1 it follows nothing",
        ),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong(tmp_path, line, reason):
    path = write(tmp_path / "t.jsonl", GOOD, GOOD, line)
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert f"{path}:3: " in str(error.value)
    assert reason in str(error.value)


@pytest.mark.parametrize("name", ["empty.jsonl", "missing.jsonl", "broken.jsonl.xz"])
def test_a_file_without_requests_is_refused(tmp_path, name):
    if name != "missing.jsonl":
        (tmp_path / name).write_bytes(b"\n")
    with pytest.raises(TraceError, match=name):
        read_trace(tmp_path / name)


def test_rows_with_one_timestamp_share_its_step_in_order():
    rows = [TraceRow(t, 100, ()) for t in (0, 3000, 3000, 3000, 9000)]
    times = [a.at_s for a in arrivals(rows, seed=1, noise_sigma=0.0)]
    for at_s, low, high in zip(times, (0, 3, 4, 5, 9), (3, 4, 5, 6, 12), strict=True):
        assert low <= at_s < high


def test_a_load_scales_the_times_between_arrivals():
    rows = [TraceRow(1000.0 * t, 100, ()) for t in range(100)]
    assert span_s(rows) == 100.0
    slow, fast = (arrivals(rows, 1, 0.0, rate) for rate in (1.0, 4.0))
    assert [a.at_s for a in fast] == pytest.approx([a.at_s / 4 for a in slow])


def test_noise_has_mean_one_and_belongs_to_the_seed():
    rows = [TraceRow(float(t), 100, ()) for t in range(4000)]
    noise = [a.noise for a in arrivals(rows, 1, 0.3)]
    assert sum(noise) / len(noise) == pytest.approx(1.0, abs=0.02)
    assert max(noise) > 1.5
    assert arrivals(rows, 1, 0.3) == arrivals(rows, 1, 0.3)
    assert noise != [a.noise for a in arrivals(rows, 2, 0.3)]


def test_the_second_half_is_later_than_the_first():
    rows = [TraceRow(float(t), 100, ()) for t in range(5)]
    first, second = halves(rows)
    assert [*first, *second] == rows
    assert len(first) == 2
