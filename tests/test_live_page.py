"""The page of ``vertumnusd reproduce --live`` says what was seen, promised or not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vertumnusd.__main__ import main
from vertumnusd.live import experiment, page
from vertumnusd.live.cluster import Conversion
from vertumnusd.live.run import Load, NotPlayed, Run, means, most_at_once
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.generate import Phase

LOAD = Load("swing", (Phase(10.0, 5.0, "short"), Phase(10.0, 0.5, "long")))
FOLLOWING = Run(
    load=LOAD,
    composition="4CP2",
    follows=True,
    requests=55,
    failed=0,
    live_s=0.9,
    simulated_s=0.8,
    phases=((0.5, 0.4), (3.0, 2.0)),
    course=((0.5, 0.4), (float("nan"), float("nan")), (3.0, 2.0), (3.0, 2.5)),
    live_hit_rate=0.3,
    latest_send_s=0.004,
    daemon_share=0.12,
    conversions=(
        Conversion("split", "exposed", 0.25, 0.0016),
        Conversion("split", "rolled back", 9.0, 0.0),
    ),
    simulated=(Conversion("split", "exposed", 0.2, 0.002),),
)
FIXED = replace(
    FOLLOWING,
    composition="8CP1",
    follows=False,
    live_s=1.0,
    simulated_s=1.0,
    conversions=(),
    simulated=(),
)
SETTING = page.Setting(Conditions(), 1.0, 2.0)


def written(folder: Path, runs: list[Run], left_out: list[NotPlayed]) -> str:
    pytest.importorskip("matplotlib")
    text = page.write(folder, SETTING, runs, left_out, 60.0).read_text()
    assert (folder / "plots" / page.PLOT).stat().st_size > 1000
    return text


def test_the_page_has_every_run_by_phase_and_the_worst_ratio(tmp_path: Path) -> None:
    text = " ".join(written(tmp_path, [FOLLOWING, FIXED], []).split())
    assert "are 12.5% apart at most (swing on 4CP2, following" in text
    assert "windows of 2 s. Seconds are" in text
    assert "| ratio | 10 s of short, 5.0/s | 10 s of long, 0.5/s |" in text
    assert "| 4CP2, following | 0.900 | 0.800 | 1.125 | 0.50 / 0.40 | 3.00 / 2.00 |" in text
    assert "following the load took 0.90 times the TTFT of 8CP1" in text
    assert "in the simulator 0.80 times" in text


def test_drains_and_switches_are_broken_down(tmp_path: Path) -> None:
    text = written(tmp_path, [FOLLOWING, FIXED], [])
    assert (
        "| swing | split | 2 / 1 | 1 | 4.62 / 0.20 | 9.00 / 0.20 | 1.6 / 2.0 | 1.6 / 2.0 |" in text
    )


def test_what_was_not_played_is_said(tmp_path: Path) -> None:
    text = written(tmp_path, [FOLLOWING, FIXED], [NotPlayed(LOAD, "2CP4", 3461)])
    assert "swing on 2CP4 was not played: 3,461 requests would wait at once" in text


def test_means_by_part_and_requests_that_wait_at_once() -> None:
    at_s, ttft_s = np.array([0.0, 1.0, 2.0, 9.0]), np.array([3.0, 3.0, 1.5, 1.0])
    assert means(np.array([0, 0, 0, 2]), 3, ttft_s, 2 * ttft_s)[::2] == ((2.5, 5.0), (1.0, 2.0))
    assert most_at_once(at_s, ttft_s) == 3


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--ranks", "6"], "--ranks 6: a multiple of 4"),
        (["--json", "/nowhere/figures.json"], "/nowhere/figures.json: a file in a folder"),
        (["--out", "/proc/nowhere"], "--out /proc/nowhere: No such file"),
    ],
)
def test_what_cannot_be_run_or_written_is_refused_before_anything_runs(
    flags: list[str],
    word: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(experiment, "_play_all", lambda _: pytest.fail("it runs"))
    try:
        status = main(["reproduce", "--live", *flags])
    except SystemExit as end:  # of a flag that cannot be read
        status = end.code
    assert status == 2
    assert word in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--ranks", "4"], "--ranks goes only with --live"),
        (["--window", "2"], "--window goes only with --live"),
        (["--live", "--traces", "traces"], "--traces goes not with --live"),
    ],
)
def test_a_flag_that_would_count_for_nothing_is_refused(flags, reason, capsys) -> None:
    assert main(["reproduce", *flags]) == 2
    assert reason in capsys.readouterr().err
