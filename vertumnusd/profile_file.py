"""A profile: what was learned about a model on a machine, as a TOML file in ``etc/profiles``.

``[shared]`` and ``[degree.C]`` hold the coefficients of Ê (``control/prefill_time.py``), in
seconds; ``[capacity]`` the κ_C of each degree as a share of the window. ``[measured]`` has the
conditions, the errors and the points of the measurement: people and plots read it, the scheduler
does not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from vertumnusd.control.coefficients import Coefficients, Positive
from vertumnusd.control.prefill_time import PrefillTime


class ProfileFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of one file. Degrees are keys, hence text."""

    model: str
    dtype: str
    device: str
    shared: Coefficients
    degree: dict[str, Coefficients] = {}
    capacity: dict[str, Positive] = {}
    measured: dict[str, Any] = {}

    @property
    def prefill_time(self) -> PrefillTime:
        return PrefillTime(self.shared, {int(degree): c for degree, c in self.degree.items()})

    @property
    def capacity_shares(self) -> dict[int, float]:
        """κ_C over the window, by degree; degrees that were not measured are not in it."""
        return {int(degree): share for degree, share in self.capacity.items()}


def read_profile(path: Path) -> ProfileFile:
    """Raises OSError, or ValueError for a file that is no profile."""
    try:
        profile = msgspec.toml.decode(path.read_bytes(), type=ProfileFile)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    for degree in (*profile.degree, *profile.capacity):
        if not degree.isdecimal():
            raise ValueError(f"degree {degree!r}: a number is expected")
    return profile


def write_profile(path: Path, profile: ProfileFile, comment: str) -> None:
    """Raises OSError. ``comment`` stands above everything else."""
    values = msgspec.to_builtins(profile)
    head = {name: values[name] for name in ("model", "dtype", "device")}
    parts = ["".join(f"# {line}\n" for line in comment.splitlines()), _pairs(head)]
    parts.append(_section("shared", values["shared"]))
    parts += [_section(f"degree.{degree}", own) for degree, own in values["degree"].items()]
    for name in ("capacity", "measured"):
        if values[name]:
            parts.append(_section(name, values[name]))
    path.write_text("\n".join(parts), encoding="utf-8")


def _section(name: str, values: Mapping[str, Any]) -> str:
    """One table, and those inside it after it."""
    plain = {key: value for key, value in values.items() if not isinstance(value, dict)}
    inner = [_section(f"{name}.{k}", v) for k, v in values.items() if isinstance(v, dict)]
    return "\n".join([f"[{name}]\n{_pairs(plain)}", *inner])


def _pairs(values: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {_value(value)}\n" for key, value in values.items())


def _value(value: Any) -> str:
    """JSON spells numbers, texts and lists as TOML does; lists of lists get a line each."""
    if isinstance(value, float):
        return f"{value:.6g}" if value else "0.0"
    if isinstance(value, list | tuple) and value and isinstance(value[0], list | tuple):
        return "[\n" + "".join(f"  {_value(row)},\n" for row in value) + "]"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
