"""Figures of a comparison, as PNG files in its folder."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.compare.answer import question
from zoo.compare.ranking import Standing, ranking
from zoo.compare.result import Comparison
from zoo.compare.series import Chart, by_cost, by_position, by_size, in_training
from zoo.compare.wording import measured, named
from zoo.diagnostics.drawing.axes import colour
from zoo.diagnostics.drawing.colours import LEVELS
from zoo.panels import Points
from zoo.run import storage

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, GREY, LINE = "#0b6aa8", "#8b919a", "#d8d6ce"
COLOURS = ("#0b6aa8", "#c8500a", "#11835f", "#9a4a86", "#a67a00", "#4a9ccd", "#6b6f76", "#7a4a1f")
LONGEST = 40  # letters of a name
ABREAST = 4
KNOWN_BY = "best: filled; within the spread of seeds: open; small dots: seeds; bars: 95 % intervals"


def draw(comparison: Comparison, folder: Path) -> list[Path]:
    """The ranking, and what else there is of curves by size and place, training and costs. Raises ZooError as `write`."""
    charts = {"sizes": by_size(comparison), "positions": by_position(comparison), "training": in_training(comparison)}
    figures = {"ranking": _ranking(comparison)}
    figures |= {name: _several(comparison, found) for name, found in charts.items() if found}
    if points := by_cost(comparison):
        figures["costs"] = _several(comparison, points)
    return [_written(figure, folder / f"{name}.png") for name, figure in figures.items()]


def _written(figure: Figure, path: Path) -> Path:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    storage.write(file, path)
    return path


def _figure(comparison: Comparison, columns: int, rows: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns + 1, height * rows + 0.6), layout="constrained", dpi=150)
    figure.suptitle(_plain(question(comparison), 90), fontsize=12)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _ranking(comparison: Comparison) -> Figure:
    """A row for each variant in the order of each place, the best on top."""
    height = max(2.0, 0.9 + 0.3 * len(comparison.variants))
    columns = min(len(comparison.places), ABREAST)
    figure, every = _figure(comparison, columns, -(-len(comparison.places) // columns), 4.2, height)
    for axes, place in zip(every, comparison.places, strict=False):
        standings = ranking(comparison, place)
        for row, one in enumerate(standings):
            _standing(axes, one, row)
        axes.set_yticks(range(len(standings)), [_plain(_label(one)) for one in standings], fontsize=8)
        axes.set_ylim(len(standings) - 0.5, -0.5)
        axes.set(title=_plain(named(comparison, place)), xlabel=_plain(measured(comparison)))
        _finish(axes)
    for axes in every[len(comparison.places) :]:
        axes.set_axis_off()
    figure.supxlabel(KNOWN_BY if len(comparison.seeds) > 1 else "one seed each: no intervals", fontsize=8, color=GREY)
    return figure


def _label(one: Standing) -> str:
    return f"{one.variant.name} *" if one.variant.unfair else one.variant.name


def _standing(axes: Axes, one: Standing, row: int) -> None:
    if one.mean is None:
        axes.text(0.5, row, _plain("; ".join(one.lacking)), transform=axes.get_yaxis_transform(), ha="center", va="center",
                  fontsize=7, color=GREY)  # fmt: skip
        return
    paint = BLUE if one.verdict in ("best", "within") else GREY
    if one.mean.low is not None and one.mean.high is not None:
        axes.plot(
            [one.mean.low, one.mean.high], [row, row], color=paint, alpha=0.4, linewidth=4, solid_capstyle="round"
        )
    axes.plot(list(one.values.values()), [row + 0.28] * len(one.values), ".", color=paint, markersize=3)
    filled = "white" if one.verdict == "within" else paint
    axes.plot([one.mean.mean], [row], "o", color=paint, markerfacecolor=filled, markersize=6)


def _several(comparison: Comparison, found: Sequence[Chart | Points]) -> Figure:
    columns = min(len(found), 3)
    figure, every = _figure(comparison, columns, -(-len(found) // columns), 5.0, 3.6)
    for axes, one in zip(every, found, strict=False):
        _curves(axes, one) if isinstance(one, Chart) else _points(axes, one)
        _finish(axes)
        axes.legend(frameon=False, fontsize=7, ncols=1 + (len(axes.lines) > 12))
    for axes in every[len(found) :]:
        axes.set_axis_off()
    return figure


def _curves(axes: Axes, chart: Chart) -> None:
    for line in chart.lines:
        paint = _colour(line.look)
        look: dict[str, Any] = {"marker": "o", "markersize": 4} if len(line.x) <= 12 else {}
        axes.plot(line.x.tolist(), line.y.tolist(), label=_plain(line.label), color=paint, linewidth=1.5, **look)
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
    axes.set(title=_plain(chart.panel.title), xlabel=chart.panel.x, ylabel=_plain(chart.panel.y))


def _points(axes: Axes, panel: Points) -> None:
    for number, (label, (x, y)) in enumerate(panel.groups.items()):
        look = colour(number, len(panel.groups))
        axes.plot(x.tolist(), y.tolist(), "o", label=_plain(label), color=_colour(look))
    axes.set(title=panel.title, xlabel=panel.x, ylabel=_plain(panel.y))


def _colour(look: str) -> Any:
    """Of a class of colours of the page."""
    from matplotlib import colormaps

    return COLOURS[int(look[1:])] if look[0] == "s" else colormaps["viridis_r"](int(look[1:]) / (LEVELS - 1))


def _finish(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=LINE, linewidth=0.5)
    axes.set_axisbelow(True)


def _plain(text: str, longest: int = LONGEST) -> str:
    """Short enough, and no formula."""
    short = text if len(text) <= longest else f"{text[: longest - 1]}\u2026"
    return "".join(letter for letter in short if letter.isprintable()).replace("$", r"\$")
