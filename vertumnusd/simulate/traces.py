"""Traces: rows of requests as recorded, and the arrivals that a seed and a load make of them.

The format is Mooncake's: one JSON object a line, with ``timestamp`` (ms), ``input_length``,
``output_length`` (tokens) and ``hash_ids``, one for each ``BLOCK_TOKENS`` of input, the last block
perhaps partial. An id stands for the whole path up to its block, so equal ids are equal
prefixes. A plain file or one compressed with xz; other keys are ignored.

Recorded timestamps are often quantised (3 s in the conversation trace), and requests that share
one would arrive as a burst that never was: they are spread over the trace's smallest step. A load
is reached by scaling the times between arrivals.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

BLOCK_TOKENS = 512


class TraceError(Exception):
    """The trace cannot be used; the message names file and line, and what is expected there."""


class TraceRow(NamedTuple):
    """One recorded request. ``blocks`` names its complete blocks, first to last."""

    timestamp_ms: float
    input_tokens: int
    blocks: tuple[int, ...]


class Arrival(NamedTuple):
    """One request of a run. Its prefill takes ``noise`` times what the profile says."""

    at_s: float
    input_tokens: int
    blocks: tuple[int, ...]
    noise: float


def read_trace(path: Path) -> list[TraceRow]:
    """All rows of a trace, in order of time. Raises :class:`TraceError`."""
    opened = lzma.open if path.suffix == ".xz" else open
    rows: list[TraceRow] = []
    paths = _Paths()
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    rows.append(_row(f"{path}:{number}", line))
                    paths.check(path, number, rows[-1].blocks)
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}") from error
    if not rows:
        raise TraceError(f"{path}: no requests; one JSON object a line is expected")
    return sorted(rows, key=lambda row: row.timestamp_ms)


class _Paths:
    """An id has one id before it, wherever it stands."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[int | None, int]] = {}  # and the line that said so first

    def check(self, path: Path, number: int, blocks: Sequence[int]) -> None:
        previous: int | None = None
        for block in blocks:
            known, line = self._before.setdefault(block, (previous, number))
            if known != previous:
                here, there = ("nothing" if b is None else b for b in (previous, known))
                raise TraceError(
                    f"{path}:{number}: hash id {block} follows {here}, in line {line} it follows"
                    f" {there}: an id must stand for one path"
                )
            previous = block


class _Line(msgspec.Struct):
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Annotated[int, msgspec.Meta(ge=1)]
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]]


_LINES = msgspec.json.Decoder(_Line)


def _row(where: str, text: str) -> TraceRow:
    try:
        line = _LINES.decode(text)
    except msgspec.DecodeError as error:
        raise TraceError(f"{where}: {error}") from error
    expected = -(-line.input_length // BLOCK_TOKENS)
    if len(line.hash_ids) != expected:
        raise TraceError(
            f"{where}: {len(line.hash_ids)} hash_ids for input_length {line.input_length}:"
            f" {expected} are expected, one for each {BLOCK_TOKENS} tokens"
        )
    complete = line.input_length // BLOCK_TOKENS
    return TraceRow(line.timestamp, line.input_length, tuple(line.hash_ids[:complete]))


def arrivals(
    rows: Sequence[TraceRow], seed: int, noise_sigma: float, rate: float | None = None
) -> list[Arrival]:
    """What happens in the run of ``seed``: when each request comes and how its prefill deviates.

    ``rate`` (requests/s, mean) scales the times between arrivals; None keeps them. The noise is
    log-normal with mean 1 and belongs to the request, so every policy meets the same.
    """
    random = np.random.default_rng(seed)
    times_s = _spread(rows, random.random(len(rows)).tolist())
    factor = 1.0 if rate is None else len(rows) / (rate * span_s(rows))
    noise = np.exp(random.normal(-(noise_sigma**2) / 2, noise_sigma, len(rows))).tolist()
    return [
        Arrival(at_s * factor, row.input_tokens, row.blocks, deviation)
        for at_s, row, deviation in zip(times_s, rows, noise, strict=True)
    ]


def span_s(rows: Sequence[TraceRow]) -> float:
    """Seconds that the rows cover, the last step included."""
    return (rows[-1].timestamp_ms - rows[0].timestamp_ms + _step_ms(rows)) / 1e3


def _spread(rows: Sequence[TraceRow], where: Sequence[float]) -> list[float]:
    """Seconds from the first row: rows with one timestamp share the step evenly, in order.

    ``where`` in 0 … 1 says where in its share each one falls.
    """
    step_ms = _step_ms(rows)
    times_s: list[float] = []
    for timestamp_ms, group in groupby(rows, key=lambda row: row.timestamp_ms):
        size = sum(1 for _ in group)
        for k in range(size):
            offset_ms = step_ms * (k + where[len(times_s)]) / size
            times_s.append((timestamp_ms - rows[0].timestamp_ms + offset_ms) / 1e3)
    return times_s


def _step_ms(rows: Iterable[TraceRow]) -> float:
    """The smallest step between timestamps: the resolution they were recorded with."""
    distinct = sorted({row.timestamp_ms for row in rows})
    return min((after - before for before, after in pairwise(distinct)), default=1.0)


def halves(rows: Sequence[TraceRow]) -> tuple[Sequence[TraceRow], Sequence[TraceRow]]:
    """The half to tune on, and the later half to score on."""
    middle = len(rows) // 2
    return rows[:middle], rows[middle:]
