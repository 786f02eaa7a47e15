"""Curves and points as figures of the page."""

from __future__ import annotations

from zoo.compare.result import TRAINED, Comparison
from zoo.compare.series import Chart, by_cost, by_position, by_size, in_training
from zoo.compare.wording import at
from zoo.diagnostics.drawing.curves import plot, points
from zoo.diagnostics.drawing.figures import figure, titled
from zoo.diagnostics.drawing.markup import Markup, tag


def sizes(comparison: Comparison) -> Markup | None:
    chart = by_size(comparison)
    if chart is None:
        return None
    bands = "Bands are 95 % intervals over seeds." if len(comparison.seeds) > 1 else "One seed each: no intervals."
    return _figures(figure(f"{bands} The dotted line is the size of training.", _drawn(chart), wide=True))


def positions(comparison: Comparison) -> Markup | None:
    charts = by_position(comparison)
    cut = f" The texts were cut into {comparison.windows}." if comparison.windows else ""
    said = f"Means of all seeds and of neighbouring tokens.{cut}"
    return _figures(figure(said, *map(_drawn, charts), wide=True)) if charts else None


def training(comparison: Comparison) -> Markup | None:
    chart = in_training(comparison)
    said = (
        "Means of the seeds, with bands from the lowest to the highest."
        if len(comparison.seeds) > 1
        else "One seed each."
    )
    return _figures(figure(said, _drawn(chart), wide=True)) if chart else None


def costs(comparison: Comparison) -> Markup | None:
    found = by_cost(comparison)
    said = f"Means {at(comparison, [TRAINED])}, against what differs between variants; hover a point for its name."
    return _figures(figure(said, *(titled(one.title, points(one)) for one in found), wide=True)) if found else None


def _drawn(chart: Chart) -> Markup:
    return titled(chart.panel.title, plot(chart.panel, chart.lines, chart.across, chart.mark))


def _figures(drawn: Markup) -> Markup:
    return tag("div", drawn, class_="figures charts")
