"""PNG plots of a comparison. Needs matplotlib, the optional extra ``plots``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vertumnusd.simulate.report import Interval

INSTALL = "plots need matplotlib: pip install 'vertumnusd[plots]'"
COLOURS = {
    "ours": "#b5179e",
    "paper": "#e76f51",
    "mix": "#f4a261",
    "static": "#8d99ae",
    "round-robin": "#adb5bd",
    "least-loaded": "#6c757d",
    "cache-aware": "#2a9d8f",
    "overlap-cost": "#457b9d",
    "bound": "#212529",
    "homo-1": "#90be6d",
    "homo-2": "#43aa8b",
    "homo-4": "#577590",
    "homo-8": "#277da1",
}


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
            style: dict[str, Any] = {"color": COLOURS.get(series.name)}
            if series.name == "bound":
                style["linestyle"] = ":"
            if series.marks_only:
                style["linestyle"] = "none"
            width = 2.2 if series.name in ("ours", "paper") else 1.2
            axis.errorbar(
                xs, means, halves, label=series.name, marker="o", markersize=3.5,
                linewidth=width, capsize=2, **style,
            )  # fmt: skip
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
                label=name, color=COLOURS.get(name), capsize=2,
            )  # fmt: skip
        axis.set_xticks(range(len(panel.groups)), panel.groups)
        _dress(axis, Panel(panel.title, "", panel.y_label, (), panel.log_y))
    _save(figure, axes, path, len(panels))


def _figure(panels: int, columns: int, width: float) -> tuple[Any, list[Any]]:
    try:
        import matplotlib
    except ImportError as error:
        raise PlotsMissing(INSTALL) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = -(-panels // columns)
    figure, grid = pyplot.subplots(
        rows, columns, figsize=(width * columns, 3.1 * rows + 0.6), squeeze=False
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
        axis.set_yscale("log")
    for x in panel.borders:
        axis.axvline(x, color="#adb5bd", linestyle=":", linewidth=1)
    if panel.ticks:
        axis.plot(
            panel.ticks, [0.02] * len(panel.ticks), "|", color=COLOURS["paper"], markersize=9,
            transform=axis.get_xaxis_transform(),
        )  # fmt: skip


def _save(figure: Any, axes: Sequence[Any], path: Path, panels: int) -> None:
    from matplotlib import pyplot

    for axis in axes[panels:]:
        axis.set_visible(False)
    named: dict[str, Any] = {}
    for axis in axes[:panels]:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    figure.tight_layout(rect=(0, 0.45 / figure.get_figheight(), 1, 1))
    figure.legend(
        list(named.values()), list(named), loc="lower center", ncols=min(7, len(named)),
        fontsize=8, frameon=False,
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
