"""Compiled decisions are the interpreted ones; ``make compiled-test`` runs this against both."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import vertumnusd
from vertumnusd.__main__ import main
from vertumnusd.compiled import COMPILED, DECISIONS

SOURCES = Path(__file__).resolve().parent.parent
COPY = Path(vertumnusd.__file__).resolve().parent.parent


def test_the_version_says_how_decisions_are_made(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    version = f"vertumnusd {vertumnusd.__version__} (decisions {DECISIONS})"
    assert capsys.readouterr().out.strip() == version


def test_nothing_is_compiled_beside_the_sources():
    assert not list((SOURCES / "vertumnusd").rglob("*.so"))


@pytest.mark.skipif(not COMPILED, reason="this copy is not compiled")
@pytest.mark.parametrize("load", ["conversation", "short:60:4,long:60:1"])
def test_a_replay_ends_as_interpreted_to_the_last_digit(load, tmp_path):
    reports = [tmp_path / "compiled.json", tmp_path / "interpreted.json"]
    for copy, report in zip((COPY, SOURCES), reports, strict=True):
        flags = f"--seconds 120 --rate 4 --gpus 16 --policies ours,paper --json {report}"
        subprocess.run(
            [sys.executable, "-m", "vertumnusd", "simulate", load, *flags.split()],
            env={**os.environ, "PYTHONPATH": str(copy)},
            cwd=tmp_path,
            check=True,
            stdout=subprocess.DEVNULL,
        )
    assert reports[0].read_bytes() == reports[1].read_bytes()
