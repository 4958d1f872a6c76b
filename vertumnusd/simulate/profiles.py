"""Prefill times of the simulated devices: fitted coefficients, or a measured table.

The scheduler believes ``predicted``, always a fit of Ê (``control/prefill_time.py``); virtual
workers take what ``actual_s`` says, which for a table is the table itself. A table is a csv
file with the columns ``degree,input_tokens,cached_tokens,prefill_ms`` and perhaps ``variant``.
"""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from vertumnusd.config import ConfigError, ModelConfig, load_profile_file
from vertumnusd.control.prefill_time import Measurement, PrefillTime, fit

COLUMNS = ("degree", "input_tokens", "cached_tokens", "prefill_ms")

# (degree, uncached tokens, cached tokens) → seconds
ServiceTime = Callable[[int, int, int], float]


@dataclass(frozen=True, slots=True)
class Profile:
    """What the scheduler predicts and what really happens, before noise."""

    name: str
    predicted: PrefillTime
    actual_s: ServiceTime
    capacity_shares: Mapping[int, float] = field(default_factory=dict)  # κ_C over the window


@lru_cache
def profile(name: str) -> Profile:
    """A name in etc/profiles, a .toml file of coefficients, or ``table.csv[:variant]``.

    Raises ConfigError.
    """
    path, _, variant = name.partition(":")
    if path.endswith(".csv"):
        return measured(Path(path), variant)
    content, _ = load_profile_file(ModelConfig(profile=name), "")
    predicted = content.prefill_time
    return Profile(name, predicted, predicted.predict_s, content.capacity_shares)


def measured(path: Path, variant: str) -> Profile:
    """A measured table, and its fit: one for every degree by itself, so none hides another."""
    measurements = read_table(path, variant)
    by_degree: dict[int, list[Measurement]] = defaultdict(list)
    for measurement in measurements:
        by_degree[measurement.degree].append(measurement)
    shared, _ = fit(measurements)
    single = {degree: fit(rows)[0] for degree, rows in by_degree.items()}
    name = path.stem + (f" ({variant})" if variant else "")
    return Profile(name, PrefillTime(shared, single), Table(measurements).interpolate_s)


def variants_of(path: Path) -> list[str]:
    """The variants in a table; one without a name if it has no such column."""
    return sorted({row.get("variant", "") for _, row in _table_rows(path)})


def read_table(path: Path, variant: str) -> list[Measurement]:
    """The rows of one variant (all, if the table has none). Raises ConfigError with the line."""
    rows = _table_rows(path)
    chosen = [(line, row) for line, row in rows if row.get("variant", "") == variant]
    if not chosen:
        known = ", ".join(variants_of(path))
        raise ConfigError(f"{path}: no variant {variant!r}; known: {known or 'none'}")
    return [_measurement(f"{path}:{line}", row) for line, row in chosen]


def _table_rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Each row with its line."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if missing := sorted(set(COLUMNS) - set(reader.fieldnames or ())):
                raise ConfigError(f"{path}:1: no column {missing[0]}; expected are {COLUMNS}")
            return [(reader.line_num, row) for row in reader]
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error


def _measurement(where: str, row: Mapping[str, str]) -> Measurement:
    try:
        degree, length, cached = (int(row[column]) for column in COLUMNS[:3])
        elapsed_s = float(row["prefill_ms"]) / 1e3
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from error
    if degree < 1 or not 0 <= cached < length or not elapsed_s > 0:
        raise ConfigError(
            f"{where}: degree {degree}, {length} input and {cached} cached tokens, {elapsed_s} s:"
            " a degree and a time above 0 and fewer cached than input tokens are expected"
        )
    return Measurement(degree, length - cached, cached, elapsed_s)


class Table:
    """Measured prefill times, interpolated over input length and cached share of it.

    Linear in the length between neighbours of the grid at the same cached share, linear in the
    share at each length; exact at the measured points. Below the shortest length the time is that
    of the shortest; beyond the longest length or share the last step goes on, never below the
    shortest time measured for the degree.
    """

    def __init__(self, measurements: Sequence[Measurement]) -> None:
        grids: dict[int, dict[int, list[tuple[float, float]]]] = defaultdict(dict)
        for m in measurements:
            length = m.uncached_tokens + m.cached_tokens
            points = grids[m.degree].setdefault(length, [])
            points.append((m.cached_tokens / length, m.elapsed_s))
        self._grids = {
            degree: sorted((float(length), sorted(points)) for length, points in grid.items())
            for degree, grid in grids.items()
        }
        self._floor_s = {
            degree: min(time for _, points in grid for _, time in points)
            for degree, grid in self._grids.items()
        }

    def interpolate_s(self, degree: int, uncached_tokens: int, cached_tokens: int) -> float:
        if degree not in self._grids:
            raise ConfigError(f"no measured degree {degree}; measured are {sorted(self._grids)}")
        grid = self._grids[degree]
        length = max(float(uncached_tokens + cached_tokens), grid[0][0])
        share = cached_tokens / (uncached_tokens + cached_tokens)
        if len(grid) == 1:
            return max(_line(grid[0][1], share), self._floor_s[degree])
        upper = min(max(bisect_right(grid, length, key=lambda entry: entry[0]), 1), len(grid) - 1)
        (length0, points0), (length1, points1) = grid[upper - 1], grid[upper]
        ends = ((length0, _line(points0, share)), (length1, _line(points1, share)))
        return max(_line(ends, length), self._floor_s[degree])


def _line(points: Sequence[tuple[float, float]], x: float) -> float:
    """The piecewise line through points in rising order; its end pieces go on beyond them."""
    if len(points) == 1:
        return points[0][1]
    upper = min(max(bisect_right(points, x, key=lambda point: point[0]), 1), len(points) - 1)
    (x0, y0), (x1, y1) = points[upper - 1], points[upper]
    if x == x1:
        return y1
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
