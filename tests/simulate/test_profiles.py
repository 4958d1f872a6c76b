from __future__ import annotations

from pathlib import Path

import pytest

from vertumnusd.config import ConfigError
from vertumnusd.control.prefill_time import Measurement
from vertumnusd.simulate.profiles import Table, profile

HEADER = "variant,degree,input_tokens,cached_tokens,prefill_ms\n"
ROWS = "a,1,1000,0,100\na,1,1000,500,60\na,1,2000,0,300\na,1,2000,1000,160\n"


def table_file(tmp_path, text=HEADER + ROWS):
    path = tmp_path / "t.csv"
    path.write_text(text)
    return path


def test_the_calibration_gives_the_published_speed_ups():
    seconds = profile("q3").actual_s
    single = seconds(1, 65_536, 0)
    assert single == pytest.approx(10.0, rel=0.01)
    assert [round(single / seconds(c, 65_536, 0), 2) for c in (2, 4, 8)] == [1.68, 2.71, 3.91]
    single = seconds(1, 1024, 0)
    assert [round(single / seconds(c, 1024, 0), 2) for c in (2, 4, 8)] == [0.86, 0.99, 1.06]


def test_a_table_is_exact_where_it_was_measured(tmp_path):
    actual_s = profile(f"{table_file(tmp_path)}:a").actual_s
    measured = {(1000, 0): 0.1, (1000, 500): 0.06, (2000, 0): 0.3, (2000, 1000): 0.16}
    for (length, cached), seconds in measured.items():
        assert actual_s(1, length - cached, cached) == pytest.approx(seconds, rel=1e-12)


def test_a_table_is_linear_between_lengths_and_cached_shares(tmp_path):
    actual_s = profile(f"{table_file(tmp_path)}:a").actual_s
    assert actual_s(1, 1500, 0) == pytest.approx(0.2)
    # a quarter cached: 80 ms at 1000 tokens, 230 ms at 2000
    assert actual_s(1, 750, 250) == pytest.approx(0.08)
    assert actual_s(1, 1500 - 375, 375) == pytest.approx(0.155)


def test_a_table_goes_on_beyond_its_ends_but_not_below_its_shortest_time(tmp_path):
    actual_s = profile(f"{table_file(tmp_path)}:a").actual_s
    assert actual_s(1, 3000, 0) == pytest.approx(0.5)
    assert actual_s(1, 10, 0) == pytest.approx(0.1)
    assert actual_s(1, 1, 999) == pytest.approx(0.06)


def test_degrees_without_measurements_are_refused():
    table = Table([Measurement(2, 100, 0, 1.0)])
    assert table.interpolate_s(2, 400, 0) == 1.0
    with pytest.raises(ConfigError, match=r"no measured degree 4; measured are \[2\]"):
        table.interpolate_s(4, 100, 0)


def test_the_scheduler_believes_a_fit_of_the_table(tmp_path):
    chosen = profile(f"{table_file(tmp_path)}:a")
    assert chosen.predicted.predict_s(1, 2000, 0) == pytest.approx(0.3, rel=0.25)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (HEADER + ROWS + "a,1,1000,x,5\n", ":6: invalid literal"),
        (HEADER + "a,1,1000,0,0\n", ":2: degree 1"),
        (HEADER + "a,1,1000,1000,5\n", ":2: degree 1"),
        (HEADER + "b,1,1000,0,5\n", "no variant 'a'; known: b"),
        ("variant,degree,input_tokens\n", ":1: no column cached_tokens"),
    ],
)
def test_a_bad_table_is_refused_with_its_line(tmp_path, text, reason):
    path = table_file(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        profile(f"{path}:a")
    assert reason in str(error.value)


def test_an_unknown_profile_names_the_known_ones(tmp_path):
    with pytest.raises(ConfigError, match="q3"):
        profile("q4")
    with pytest.raises(ConfigError, match="No such file"):
        profile(str(Path(tmp_path) / "none.csv"))
