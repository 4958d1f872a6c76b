"""PNG plots of a comparison. Needs matplotlib, the optional extra ``plots``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vertumnusd.simulate.report import Interval

INSTALL = "plots need matplotlib: pip install 'vertumnusd[plots]'"
# Policies that go together share a line style: the controller's, homogeneous pools, routers.
STYLES: dict[str, dict[str, Any]] = {
    "ours": {"color": "#b5179e", "linewidth": 2.4, "zorder": 5},
    "paper": {"color": "#e85d04", "linewidth": 2.4, "zorder": 4},
    "mix": {"color": "#ffba08", "linewidth": 1.4},
    "static": {"color": "#6d4c41", "linewidth": 1.4},
    "homo-1": {"color": "#95d5b2", "linestyle": "--"},
    "homo-2": {"color": "#40916c", "linestyle": "--"},
    "homo-4": {"color": "#1b7a8c", "linestyle": "--"},
    "homo-8": {"color": "#0b2545", "linestyle": "--"},
    "round-robin": {"color": "#adb5bd", "linestyle": "-."},
    "least-loaded": {"color": "#6c757d", "linestyle": "-."},
    "cache-aware": {"color": "#4895ef", "linestyle": "-."},
    "overlap-cost": {"color": "#4361ee", "linestyle": "-."},
    "bound": {"color": "#000000", "linestyle": ":"},
}
LOG_TICKS = (1.0, 2.0, 5.0)
BOTTOM_INCHES = 0.6  # of a figure, for the legend
LEGEND_INCHES = 1.7  # for one name in it


class PlotsMissing(Exception):
    """matplotlib is not installed."""


class Series(NamedTuple):
    """One line: its name, and a value with its interval at each x."""

    name: str
    points: Sequence[tuple[float, Interval]]
    marks_only: bool = False


class Panel(NamedTuple):
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_y: bool = False
    y_max: float | None = None
    borders: tuple[float, ...] = ()  # x of vertical lines
    ticks: tuple[float, ...] = ()  # x of marks along the bottom


def lines(path: Path, panels: Sequence[Panel], columns: int, width: float = 4.2) -> None:
    """Panels side by side with one legend below them."""
    figure, axes = _figure(len(panels), columns, width)
    for axis, panel in zip(axes, panels, strict=False):
        for series in panel.series:
            xs = [x for x, _ in series.points]
            means = [value.mean for _, value in series.points]
            halves = [value.half for _, value in series.points]
            style = {"linewidth": 1.2, **STYLES.get(series.name, {})}
            if series.marks_only:
                style.update(linestyle="none", marker="D", markersize=6, markerfacecolor="none")
            style = {"marker": "o", "markersize": 3, **style}
            axis.errorbar(xs, means, halves, label=series.name, capsize=2, **style)
        _dress(axis, panel)
    _save(figure, axes, path, len(panels))


class Bars(NamedTuple):
    """Grouped bars: a value for each group and name."""

    title: str
    y_label: str
    groups: Sequence[str]
    values: Mapping[str, Sequence[Interval]]
    log_y: bool = False


def bars(path: Path, panels: Sequence[Bars], columns: int) -> None:
    figure, axes = _figure(len(panels), columns, 4.2)
    for axis, panel in zip(axes, panels, strict=False):
        width = 0.8 / len(panel.values)
        for k, (name, values) in enumerate(panel.values.items()):
            xs = [g - 0.4 + width * (k + 0.5) for g in range(len(panel.groups))]
            axis.bar(
                xs, [v.mean for v in values], width, yerr=[v.half for v in values],
                label=name, color=STYLES.get(name, {}).get("color"), capsize=2,
            )  # fmt: skip
        axis.set_xticks(range(len(panel.groups)), panel.groups)
        _dress(axis, Panel(panel.title, "", panel.y_label, (), panel.log_y))
    _save(figure, axes, path, len(panels))


class HeatMap(NamedTuple):
    """A ratio for every pair of x and y; ``values`` has a row for each y."""

    title: str
    x_label: str
    y_label: str
    xs: Sequence[float]
    ys: Sequence[float]
    values: Sequence[Sequence[float]]


def heat_maps(path: Path, panels: Sequence[HeatMap]) -> None:
    """Side by side, each value written out; white is 1, and colours end at half and twice."""
    figure, axes = _figure(len(panels), len(panels), 4.2)
    for axis, panel in zip(axes, panels, strict=True):
        colours = [[math.log2(value) for value in row] for row in panel.values]
        axis.imshow(colours, cmap="RdBu_r", vmin=-1, vmax=1, origin="lower", aspect="auto")
        for y, row in enumerate(panel.values):
            for x, value in enumerate(row):
                axis.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=10)
        axis.set_xticks(range(len(panel.xs)), [f"{x:g}" for x in panel.xs])
        axis.set_yticks(range(len(panel.ys)), [f"{y:g}" for y in panel.ys])
        _dress(axis, Panel(panel.title, panel.x_label, panel.y_label, ()))
        axis.grid(False)
    _save(figure, axes, path, len(panels))


def require() -> None:
    """Raises PlotsMissing where nothing can be drawn: better before long runs than after."""
    try:
        import matplotlib
    except ImportError as error:
        raise PlotsMissing(INSTALL) from error
    matplotlib.use("Agg")


def _figure(panels: int, columns: int, width: float) -> tuple[Any, list[Any]]:
    require()
    from matplotlib import pyplot

    rows = -(-panels // columns)
    figure, grid = pyplot.subplots(
        rows, columns, figsize=(width * columns, 3.1 * rows + BOTTOM_INCHES), squeeze=False
    )
    return figure, list(grid.flat)


def _dress(axis: Any, panel: Panel) -> None:
    axis.set_title(panel.title, fontsize=10)
    axis.set_xlabel(panel.x_label, fontsize=9)
    axis.set_ylabel(panel.y_label, fontsize=9)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    if panel.log_y:
        _log_scale(axis)
    if panel.y_max is not None:
        axis.set_ylim(top=panel.y_max)
    for x in panel.borders:
        axis.axvline(x, color="#adb5bd", linestyle=":", linewidth=1)
    if panel.ticks:
        heights = [0.02] * len(panel.ticks)  # of the axis
        style = {"marker": "|", "markersize": 9, "linestyle": "none", "color": "black"}
        axis.plot(panel.ticks, heights, transform=axis.get_xaxis_transform(), **style)


def _log_scale(axis: Any) -> None:
    """Ticks at 1, 2 and 5 times the powers of ten, written as plain numbers."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=LOG_TICKS))
    axis.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _save(figure: Any, axes: Sequence[Any], path: Path, panels: int) -> None:
    from matplotlib import pyplot

    for axis in axes[panels:]:
        axis.set_visible(False)
    named: dict[str, Any] = {}
    for axis in axes[:panels]:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    figure.tight_layout(rect=(0, BOTTOM_INCHES / figure.get_figheight(), 1, 1))
    columns = max(1, int(figure.get_figwidth() / LEGEND_INCHES))
    style = {"loc": "lower center", "ncols": columns, "fontsize": 8, "frameon": False}
    figure.legend(list(named.values()), list(named), **style)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
