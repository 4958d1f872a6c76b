"""The profile that a benchmark of prefill times reads: ``--profile FILE``, or a quick new one."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from vertumnusd.control.prefill_time import Measurement
from vertumnusd.profile_file import ProfileFile, read_profile


def profile(doc: str) -> ProfileFile:
    """As the command line of the script that calls it says."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--profile", type=Path, metavar="FILE", help="else a quick one is made")
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    if arguments.profile is not None:
        return read_profile(arguments.profile)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "profile.toml"
        command = [sys.executable, "-m", "vertumnusd", "profile", arguments.model, "--quick"]
        command += ["--dtype", arguments.dtype, "--out", str(out)]
        subprocess.run(command, stdout=sys.stderr, check=True)
        return read_profile(out)


def measurements(profile: ProfileFile) -> list[Measurement]:
    return [Measurement(*point[:4]) for point in profile.measured["points"]]


def conditions(profile: ProfileFile) -> dict[str, Any]:
    """What the figures depend on. Points that are not quiet have CPU time for a time."""
    names = ("cpu", "cores", "torch", "quiet_points")
    found = {name: profile.measured[name] for name in names}
    return {"model": profile.model, "dtype": profile.dtype, **found}
