"""What was found, as tables for people and as a profile file."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from vertumnusd import __version__
from vertumnusd.control.prefill_time import Measurement, RelativeError
from vertumnusd.control.settings import ReconfigurationSettings, SloClass
from vertumnusd.messages import Probed
from vertumnusd.profile.arguments import Wanted
from vertumnusd.profile.fitting import Judged, input_tokens
from vertumnusd.profile.load import Mix
from vertumnusd.profile.samples import Sample
from vertumnusd.profile_file import ProfileFile

WINDOW_S = ReconfigurationSettings().window_s
CACHED = (
    ("nothing", 0.0, 0.01),
    ("half", 0.01, 0.75),
    ("most", 0.75, 0.95),
    ("nearly all", 0.95, 1.0),
)


@dataclass(slots=True)
class Findings:
    """Filled while the profile is made."""

    wanted: Wanted
    samples: list[Sample]
    best: Judged
    judged: list[Judged]
    mix: Mix | None = None  # None: no length meets the SLO
    capacity: dict[int, float] = field(default_factory=dict)  # κ over the window
    probed: list[Probed] = field(default_factory=list)

    @property
    def quiet(self) -> int:
        """Points with a time that nobody disturbed."""
        return sum(sample.quiet for sample in self.samples)


def tables(findings: Findings) -> str:
    """Everything worth reading, in the order of asking."""
    parts = [
        _candidates(findings),
        _errors(findings.best),
        _speed_ups(findings.samples),
        _capacities(findings),
        _probes(findings.probed),
    ]
    return "\n\n".join(part for part in parts if part)


def profile_of(findings: Findings) -> ProfileFile:
    """The file: the coefficients of the best candidate, and how they were come by."""
    model, prefill_time = findings.wanted.model, findings.best.prefill_time
    return ProfileFile(
        model=model.name,
        dtype=model.dtype,
        device=f"cpu {platform.machine()}",
        shared=prefill_time.shared,
        degree={str(degree): k for degree, k in sorted(prefill_time.by_degree.items())},
        capacity={str(degree): share for degree, share in sorted(findings.capacity.items())},
        measured=_measured(findings),
    )


def comment_of(findings: Findings) -> str:
    """What a reader of the file should know first."""
    others = len(findings.samples) - findings.quiet
    times = "Prefill times of real ranks, one request at a time; fitted with weights 1/t."
    if others:
        times += (
            f"\nPoints without an undisturbed run, {others} of {len(findings.samples)}, have the"
            " least CPU time of the busiest rank."
        )
    row = "degree, uncached and cached tokens, seconds, runs that count and runs that do not"
    return f"{times}\npoints: {row}"


def _candidates(findings: Findings) -> str:
    rows = [
        (
            judged.candidate.name + (" ←" if judged is findings.best else ""),
            *_percent(judged.error),
            *_percent(judged.unseen_error),
        )
        for judged in findings.judged
    ]
    heads = ("form of Ê", "median", "P90", "max", "unseen: median", "P90", "max")
    return "relative error, and on lengths left out of the fit\n" + _table(heads, rows)


def _errors(best: Judged) -> str:
    rows = []
    for degree in sorted({m.degree for m in best.measurements}):
        for name, low, high in CACHED:
            part = best.part(_is_part(degree, low, high))
            if part is not None:
                errors = (*_percent(part.error), *_percent(part.unseen_error))
                rows.append((f"CP{degree}", name, *errors))
    heads = ("worker", "cached", "median", "P90", "max", "unseen: median", "P90", "max")
    return f"{best.candidate.name}\n" + _table(heads, rows)


def _is_part(degree: int, low: float, high: float) -> Callable[[Measurement], bool]:
    def holds(m: Measurement) -> bool:
        return m.degree == degree and low <= m.cached_tokens / input_tokens(m) < high

    return holds


def _speed_ups(samples: Sequence[Sample]) -> str:
    """How many times faster than the smallest degree, by length and prefix."""
    degrees = sorted({sample.point.degree for sample in samples})
    if len(degrees) < 2:
        return ""
    times_s = {sample.point: sample.elapsed_s for sample in samples}
    rows = []
    for point, first_s in times_s.items():
        if point.degree == degrees[0]:
            others = (times_s[point._replace(degree=degree)] for degree in degrees[1:])
            ratios = [f"{first_s / other_s:.2f}" for other_s in others]
            sizes = (str(point.input_tokens), str(point.cached_tokens), f"{1e3 * first_s:.0f}")
            rows.append((*sizes, *ratios))
    rows.sort(key=lambda row: (int(row[0]), int(row[1])))
    heads = ("tokens", "cached", f"CP{degrees[0]}, ms", *(f"CP{d}, ×" for d in degrees[1:]))
    return "speed-up by degree\n" + _table(heads, rows)


def _capacities(findings: Findings) -> str:
    if findings.mix is None:
        return "no capacity: no request meets the SLO, whatever its length"
    ranks = findings.wanted.config.cluster.ranks
    rows = [
        (f"CP{degree}", str(ranks // degree), f"{share:.3f}", f"{share * WINDOW_S:.1f}")
        for degree, share in sorted(findings.capacity.items())
    ]
    load = findings.mix
    head = (
        f"capacity with {load.name}, lengths × {load.factor:.3g}, SLO {_slo(findings.wanted.slo)}"
    )
    return f"{head}\n" + _table(("worker", "of them", "κ/H", f"κ in {WINDOW_S:g} s"), rows)


def _probes(probed: Sequence[Probed]) -> str:
    rows = [
        (f"CP{degree}", str(tokens), f"{1e3 * seconds:.3f}")
        for degree, tokens, seconds in _exchanges(probed)
    ]
    if not rows:
        return ""
    copied = f"copy from pool to pool: {_copy_bytes_s(probed) / 1e9:.1f} GB/s"
    return f"exchange of a layer\n{_table(('worker', 'tokens', 'ms'), rows)}\n{copied}"


def _exchanges(probed: Sequence[Probed]) -> list[tuple[int, int, float]]:
    """The slowest rank's time for each degree and size."""
    slowest: dict[tuple[int, int], float] = {}
    for rank in probed:
        for e in rank.exchanges:
            slowest[e.degree, e.tokens] = max(slowest.get((e.degree, e.tokens), 0), e.elapsed_s)
    return [(*key, seconds) for key, seconds in sorted(slowest.items())]


def _copy_bytes_s(probed: Sequence[Probed]) -> float:
    return median(rank.copy_bytes_s for rank in probed)


def _measured(findings: Findings) -> dict[str, Any]:
    config, best = findings.wanted.config, findings.best
    measured: dict[str, Any] = {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "ranks": config.cluster.ranks,
        "home_ranks": config.home_ranks,
        "block_tokens": config.cache.block_tokens,
        "torch": version("torch"),
        "vertumnusd": __version__,
        "form": best.candidate.name,
        "median_error": best.error.median,
        "p90_error": best.error.p90,
        "max_error": best.error.max,
        "unseen_median_error": best.unseen_error.median,
        "unseen_p90_error": best.unseen_error.p90,
        "quiet_points": findings.quiet,
        "points": [_row(sample) for sample in findings.samples],
    }
    if findings.mix is not None:
        load = findings.mix
        measured["load"] = f"{load.name}, lengths × {load.factor:.3g}"
        measured["slo"] = _slo(findings.wanted.slo)
    if findings.probed:
        measured["exchanges"] = _exchanges(findings.probed)
        measured["copy_bytes_s"] = _copy_bytes_s(findings.probed)
    return measured


def _row(sample: Sample) -> tuple[int, int, int, float, int, int]:
    """Degree, uncached, cached tokens, seconds, runs that count and runs that do not."""
    return (*sample.point, sample.elapsed_s, sample.runs, sample.disturbed)


def cpu_name() -> str:
    """As the kernel calls it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _slo(slo: Sequence[SloClass]) -> str:
    return ", ".join(f"below {bound.below_tokens:g}: {bound.ttft_s:g} s" for bound in slo)


def _percent(error: RelativeError) -> tuple[str, str, str]:
    return f"{error.median:.1%}", f"{error.p90:.1%}", f"{error.max:.1%}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    lines = [list(heads), *map(list, rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(heads))]
    return "\n".join(
        "  "
        + "  ".join(
            cell.ljust(width) if n == 0 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
