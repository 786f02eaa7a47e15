"""Figures of a comparison, as PNG files in its folder."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.compare.painting import GREY, finish, framed, plain
from zoo.compare.ranked import ranked
from zoo.compare.result import Comparison
from zoo.compare.series import Chart, by_cost, by_position, by_size, in_training
from zoo.diagnostics.drawing.axes import colour
from zoo.diagnostics.drawing.colours import LEVELS
from zoo.panels import Points
from zoo.run import storage

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ABREAST = 3
FEW = 12  # points that are marked on their line
COLOURS = ("#0b6aa8", "#c8500a", "#11835f", "#9a4a86", "#a67a00", "#4a9ccd", "#6b6f76", "#7a4a1f")
STYLES = ("-", "--", ":")


def draw(comparison: Comparison, folder: Path) -> list[Path]:
    """The ranking, and what else there is of curves by size and place, training and costs. Raises ZooError as `write`."""
    charts = {"sizes": by_size(comparison), "positions": by_position(comparison), "training": in_training(comparison)}
    figures = {"ranking": ranked(comparison)}
    figures |= {name: _several(comparison, found) for name, found in charts.items() if found}
    if points := by_cost(comparison):
        figures["costs"] = _several(comparison, points)
    return [_written(figure, folder / f"{name}.png") for name, figure in figures.items()]


def _written(figure: Figure, path: Path) -> Path:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    storage.write(file, path)
    return path


def _several(comparison: Comparison, found: Sequence[Chart | Points]) -> Figure:
    figure, every = framed(comparison, len(found), 2 if len(found) == 4 else ABREAST, (5.0, 3.6))
    labels = dict.fromkeys(line.label for one in found if isinstance(one, Chart) for line in one.lines)
    many = len(labels) > len(COLOURS)  # colours of neighbours look alike
    styles = {label: STYLES[number % len(STYLES)] if many else "-" for number, label in enumerate(labels)}
    for axes, one in zip(every, found, strict=True):
        _curves(axes, one, styles) if isinstance(one, Chart) else _points(axes, one)
        finish(axes)
    named = {label: handle for axes in every for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(named.values(), named.keys(), loc="outside right center", frameon=False, fontsize=8)
    return figure


def _curves(axes: Axes, chart: Chart, styles: Mapping[str, str]) -> None:
    for line in chart.lines:
        paint = _colour(line.look)
        look: dict[str, Any] = {"linestyle": styles[line.label], "linewidth": 1.5, "color": paint}
        look |= {"marker": "o", "markersize": 4} if len(line.x) <= FEW else {}
        axes.plot(line.x.tolist(), line.y.tolist(), label=plain(line.label), **look)
        if line.band:
            low, high = (end.tolist() for end in line.band)
            axes.fill_between(line.x.tolist(), low, high, color=paint, alpha=0.15, linewidth=0)
    if chart.up:
        axes.set_ylim(chart.up.low, chart.up.high)
    if chart.mark:
        axes.axvline(chart.mark[0], color=GREY, linestyle=":", linewidth=1)
    if chart.across and chart.across.log:
        axes.set_xscale("log", base=2)
    if chart.across:
        axes.set_xticks(chart.across.marks, [f"{mark:g}" for mark in chart.across.marks])
        axes.minorticks_off()
    axes.set(title=plain(chart.panel.title), xlabel=chart.panel.x, ylabel=plain(chart.panel.y))


def _points(axes: Axes, panel: Points) -> None:
    for number, (label, (x, y)) in enumerate(panel.groups.items()):
        look = colour(number, len(panel.groups))
        axes.plot(x.tolist(), y.tolist(), "o", label=plain(label), color=_colour(look))
    axes.set(title=panel.title, xlabel=panel.x, ylabel=plain(panel.y))


def _colour(look: str) -> Any:
    """Of a class of colours of the page."""
    from matplotlib import colormaps

    return COLOURS[int(look[1:])] if look[0] == "s" else colormaps["viridis_r"](int(look[1:]) / (LEVELS - 1))
