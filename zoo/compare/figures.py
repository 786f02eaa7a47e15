"""Figures of a comparison, as PNG files in its folder."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.compare.multiples import MANY, multiples
from zoo.compare.painting import BLUE, finish, framed, plain, scaled
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
BESIDE = 9  # names in a row of a legend
FEW = 12  # points that are marked on their line
COLOURS = (BLUE, "#c8500a", "#11835f", "#9a4a86", "#a67a00", "#4a9ccd", "#6b6f76", "#7a4a1f")
STYLES = ("-", "--", ":")


def draw(comparison: Comparison, folder: Path) -> list[Path]:
    """The ranking, and what else there is of curves by size and place, training and costs. Raises ZooError as `write`."""
    charts = {"sizes": by_size(comparison), "positions": by_position(comparison), "training": in_training(comparison)}
    figures = {"ranking": ranked(comparison)}
    figures |= {name: _lines(comparison, found) for name, found in charts.items() if found}
    if points := by_cost(comparison):
        figures["costs"] = _several(comparison, points)
    return [_written(figure, folder / f"{name}.png") for name, figure in figures.items()]


def _written(figure: Figure, path: Path) -> Path:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    storage.write(file, path)
    return path


def _lines(comparison: Comparison, found: Sequence[Chart]) -> Figure:
    """All charts, or the last of them where its lines are too many to be told apart; all groups of a grid."""
    crowded = len(comparison.axes) < 2 and len(found[-1].lines) > MANY
    return multiples(comparison, found[-1]) if crowded else _several(comparison, found)


def _several(comparison: Comparison, found: Sequence[Chart | Points]) -> Figure:
    figure, every = framed(comparison, len(found), 2 if len(found) == 4 else ABREAST, (5.0, 3.6))
    labels = dict.fromkeys(line.label for one in found if isinstance(one, Chart) for line in one.lines)
    many = len(labels) > len(COLOURS)  # colours of neighbours look alike
    styles = {label: STYLES[number % len(STYLES)] if many else "-" for number, label in enumerate(labels)}
    for axes, one in zip(every, found, strict=True):
        _curves(axes, one, styles) if isinstance(one, Chart) else _points(axes, one)
        finish(axes)
    named = {label: handle for axes in every for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    wide = {"loc": "outside lower center", "ncols": BESIDE} if len(named) > MANY else {"loc": "outside right center"}
    figure.legend(named.values(), named.keys(), frameon=False, fontsize=8, **wide)
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
    scaled(axes, chart)
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
