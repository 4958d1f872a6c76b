"""What the file and the tables say."""

from __future__ import annotations

from pathlib import Path

import pytest

from vertumnusd.config import load_config
from vertumnusd.control.prefill_time import Coefficients, PrefillTime
from vertumnusd.control.settings import SLO
from vertumnusd.messages import Exchanged, ModelInfo, Probed
from vertumnusd.profile.arguments import Wanted
from vertumnusd.profile.fitting import choose
from vertumnusd.profile.grid import lengths, points
from vertumnusd.profile.load import Mix
from vertumnusd.profile.report import Findings, comment_of, profile_of, tables
from vertumnusd.profile.samples import Sample

TRUE = PrefillTime(Coefficients(0.02, 0.0, 1e-6, 1e-3, 1e-7))
MODEL = ModelInfo("m", "llama", 2, 8, 2, 1, 4, 8, 10, 64, 1e-5, 1e4, True, "float32")


def findings(quiet: int) -> Findings:
    """Perfect times of degrees 1 and 2, so many of them undisturbed."""
    config = load_config(None, {"cluster": {"ranks": 2, "cp_degrees": [1, 2]}})
    grid = points([1, 2], lengths(256, 1), [0.0, 0.5], 16)
    samples = [Sample(p, TRUE.predict_s(*p), 3, 1, 0.0, n < quiet) for n, p in enumerate(grid)]
    asked = Wanted(config, Path(), MODEL, 256, [0.0, 0.5], None, "load", 4, SLO, Path("o"), False)
    best, judged = choose([sample.measurement for sample in samples])
    exchanges = [Exchanged(2, 16, 0.001)], [Exchanged(2, 16, 0.003)]
    return Findings(
        asked, samples, best, judged, Mix("load", 0.5, [(16, 16)]), {1: 0.8, 2: 0.75},
        [Probed(rank, found, 2e9) for rank, found in enumerate(exchanges)],
    )  # fmt: skip


def test_the_file_has_coefficients_capacity_and_every_point():
    found = findings(quiet=18)
    profile = profile_of(found)
    predicted_s = profile.prefill_time.predict_s(2, 100, 50)
    assert predicted_s == pytest.approx(TRUE.predict_s(2, 100, 50))
    assert profile.capacity_shares == {1: 0.8, 2: 0.75}
    assert [row[:3] for row in profile.measured["points"]] == [s.point for s in found.samples]
    assert profile.measured["exchanges"] == [(2, 16, 0.003)]  # the slowest rank's


def test_points_that_never_were_undisturbed_are_counted_in_the_comment():
    found = findings(quiet=3)
    count = len(found.samples)
    assert f"undisturbed run, {count - 3} of {count}," in comment_of(found)
    assert "undisturbed" not in comment_of(findings(quiet=len(found.samples)))


def test_the_tables_show_forms_speed_ups_capacity_and_exchanges():
    text = tables(findings(quiet=18))
    assert "published, shared ←" in text
    speed_up = TRUE.predict_s(1, 256, 0) / TRUE.predict_s(2, 256, 0)
    cells = [line.split() for line in text.splitlines()]
    assert next(row for row in cells if row[:2] == ["256", "0"])[3] == f"{speed_up:.2f}"
    assert "0.750" in text
    assert "3.000" in text
    assert "2.0 GB/s" in text


def test_without_a_mix_there_is_no_capacity():
    found = findings(quiet=18)
    found.mix, found.capacity = None, {}
    assert "no capacity" in tables(found)
    assert profile_of(found).capacity == {}
