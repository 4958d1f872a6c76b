"""Profiles are written as they are read."""

from __future__ import annotations

import pytest

from vertumnusd.control.prefill_time import Coefficients, PrefillTime
from vertumnusd.profile_file import ProfileFile, read_profile, write_profile

SHARED = Coefficients(0.0375563, 0.0, 3.78871e-05, 1e-3, 5.5e-07, 2e-08)
OWN = Coefficients(0.03, 1e-5, 0.0, 0.0, 5.5e-07)
PROFILE = ProfileFile(
    model="m",
    dtype="float32",
    device='a "device"',
    shared=SHARED,
    degree={"2": OWN},
    capacity={"1": 0.8, "2": 0.75},
    measured={
        "cores": 2,
        "points": [[1, 16, 0, 0.05], [2, 16, 0, 0.04]],
        "errors": {"published": [0.01, 0.02, 0.03]},
    },
)


def test_a_profile_comes_back_as_it_was_written(tmp_path):
    path = tmp_path / "p.toml"
    write_profile(path, PROFILE, "first line\nsecond line")
    assert path.read_text().startswith("# first line\n# second line\n")
    assert read_profile(path) == PROFILE


def test_degrees_are_numbers_again():
    assert PROFILE.prefill_time == PrefillTime(SHARED, {2: OWN})
    assert PROFILE.capacity_shares == {1: 0.8, 2: 0.75}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[degree.two]\nd_s=1.0\na_s=0.0\nb_s=0.0\nc_s=0.0\nalpha_s=0.0\n", "'two'"),
        ("[capacity]\n1 = 0.0\n", "capacity"),
        ("[capcity]\n1 = 0.5\n", "capcity"),
        ("[shared\n", "line"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path, text, word):
    path = tmp_path / "p.toml"
    head = "model='m'\ndtype='d'\ndevice='c'\n"
    shared = "[shared]\nd_s=1.0\na_s=0.0\nb_s=0.0\nc_s=0.0\nalpha_s=0.0\n"
    path.write_text(head + shared + text)
    with pytest.raises(ValueError, match=word):
        read_profile(path)
