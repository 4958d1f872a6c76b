"""A quick profile of a tiny model on two real ranks, and who uses what it wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from vertumnusd.__main__ import main
from vertumnusd.config import ModelConfig, load_profile_file
from vertumnusd.profile_file import ProfileFile

pytestmark = pytest.mark.ranks

FLAGS = ["--quick", "--ranks", "2", "--degrees", "1,2", "--longest", "256", "--budget", "0.05"]


@pytest.fixture(scope="module")
def out(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "tiny.toml"
    assert main(["profile", str(checkpoint), *FLAGS, "--out", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def profile(out: Path) -> ProfileFile:
    return load_profile_file(ModelConfig(profile=str(out)), "any")[0]


def test_every_degree_length_and_prefix_was_measured(profile: ProfileFile) -> None:
    points = profile.measured["points"]
    assert {(degree, uncached + cached) for degree, uncached, cached, *_ in points} == {
        (degree, length) for degree in (1, 2) for length in (16, 32, 64, 128, 256)
    }
    assert {cached for _, uncached, cached, *_ in points if uncached + cached == 256} == {
        0,
        128,
        224,
    }
    assert all(seconds > 0 for *_, seconds, _, _ in points)


def test_capacity_exchange_and_copies_are_there(profile: ProfileFile) -> None:
    assert set(profile.capacity_shares) == {1, 2}
    assert {(degree, tokens) for degree, tokens, _ in profile.measured["exchanges"]} == {
        (2, 16),
        (2, 256),
    }
    assert profile.measured["copy_bytes_s"] > 0


def test_there_is_a_picture_beside_it(out: Path) -> None:
    pytest.importorskip("matplotlib")
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_a_configuration_and_the_simulator_take_it(out: Path, tmp_path: Path, capsys) -> None:
    config = tmp_path / "node.toml"
    config.write_text(f'[model]\nprofile = "{out}"\n')
    assert main(["config", "check", str(config)]) == 0
    flags = ["--gpus", "2", "--degrees", "1,2", "--policies", "homo-1", "--jobs", "1"]
    load = ["short", "--seconds", "2", "--rate", "5"]
    assert main(["simulate", *load, "--profile", str(out), *flags]) == 0
    assert str(out) in capsys.readouterr().out
