"""The picture of a profile: predicted against measured, and by how much each point is off below."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vertumnusd.profile.fitting import Judged
from vertumnusd.profile.grid import Point
from vertumnusd.profile.samples import Sample

COLORS = ("#1b7a8c", "#e85d04", "#b5179e", "#0b2545", "#40916c", "#6d4c41")
MARKERS = ((0.01, "o", "cold"), (0.75, "s", "half cached"), (1.01, "^", "mostly cached"))
BAND = 0.1


def has_matplotlib() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def draw(path: Path, title: str, samples: Sequence[Sample], best: Judged) -> None:
    """Write the PNG. ImportError without matplotlib, OSError if it cannot be written."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(
        2, 1, figsize=(7.2, 8.4), sharex=True, height_ratios=(2.2, 1.0)
    )
    errors = dict(zip([sample.point for sample in samples], best.seen, strict=True))
    _band(above, below, [sample.elapsed_s for sample in samples])
    for n, degree in enumerate(sorted({sample.point.degree for sample in samples})):
        for under, marker, _ in MARKERS:
            own = [s for s in samples if s.point.degree == degree and _kind(s.point) == under]
            measured_s = [s.elapsed_s for s in own]
            relative = [errors[s.point] for s in own]
            style: dict[str, Any] = {"marker": marker, "markersize": 5, "linestyle": "none"}
            style |= {"color": COLORS[n % len(COLORS)], "markerfacecolor": "none"}
            predicted_s = [m * (1 + e) for m, e in zip(measured_s, relative, strict=True)]
            above.plot(measured_s, predicted_s, **style)
            below.plot(measured_s, [100 * e for e in relative], **style)
    _dress(above, below, title, best)
    _legend(above, sorted({sample.point.degree for sample in samples}))
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def _kind(point: Point) -> float:
    return next(under for under, _, _ in MARKERS if point.cached_share < under)


def _band(above: Any, below: Any, measured_s: Sequence[float]) -> None:
    ends = [min(measured_s) / 1.3, max(measured_s) * 1.3]
    lower, upper = ([end * factor for end in ends] for factor in (1 - BAND, 1 + BAND))
    above.plot(ends, ends, color="black", linewidth=0.8)
    above.fill_between(ends, lower, upper, color="#adb5bd", alpha=0.35, linewidth=0)
    below.axhline(0, color="black", linewidth=0.8)
    below.axhspan(-100 * BAND, 100 * BAND, color="#adb5bd", alpha=0.35, linewidth=0)


def _dress(above: Any, below: Any, title: str, best: Judged) -> None:
    error = best.error
    above.set_title(
        f"{title}\n{best.candidate.name}: median {error.median:.1%}, P90 {error.p90:.1%},"
        f" max {error.max:.1%}",
        fontsize=10,
    )
    for axis in (above, below):
        axis.set_xscale("log")
        axis.grid(alpha=0.25, which="both")
        axis.spines[["top", "right"]].set_visible(False)
    above.set_yscale("log")
    above.set_ylabel("predicted prefill, seconds")
    below.set_ylabel("off by, %")
    below.set_xlabel("measured prefill, seconds")


def _legend(axis: Any, degrees: Sequence[int]) -> None:
    """Colours are degrees, markers are cached shares."""
    for n, degree in enumerate(degrees):
        axis.plot([], [], color=COLORS[n % len(COLORS)], linewidth=3, label=f"CP{degree}")
    for _, marker, name in MARKERS:
        style = {"marker": marker, "markerfacecolor": "none", "linestyle": "none"}
        axis.plot([], [], color="black", label=name, **style)
    axis.fill_between([], [], [], color="#adb5bd", alpha=0.35, label=f"± {BAND:.0%}")
    axis.legend(fontsize=8, frameon=False)
