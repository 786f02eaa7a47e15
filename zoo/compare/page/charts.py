"""Curves and points as figures of the page."""

from __future__ import annotations

from collections.abc import Sequence

from zoo.compare.charts import Chart, by_cost, by_position, by_size, in_training
from zoo.compare.results import TRAINED, Comparison
from zoo.compare.text import at
from zoo.diagnostics.drawing.curves import plot, points
from zoo.diagnostics.drawing.figures import figure, titled
from zoo.diagnostics.drawing.markup import Markup, tag


def sizes(comparison: Comparison) -> Markup | None:
    bands = (
        "Bands are 95 % intervals over seeds."
        if len(comparison.seeds) > 1
        else "One seed each: no intervals."
    )
    return _charts(f"{bands} The dotted line is the size of training.", by_size(comparison))


def positions(comparison: Comparison) -> Markup | None:
    cut = f" The texts were cut into {comparison.windows}." if comparison.windows else ""
    return _charts(f"Means of all seeds and of neighbouring tokens.{cut}", by_position(comparison))


def training(comparison: Comparison) -> Markup | None:
    several = len(comparison.seeds) > 1
    said = (
        "Means of the seeds, with bands from the lowest to the highest."
        if several
        else "One seed each."
    )
    return _charts(said, in_training(comparison))


def costs(comparison: Comparison) -> Markup | None:
    found = by_cost(comparison)
    said = f"Means {at(comparison, [TRAINED])}, against what differs between variants; hover a point for its name."
    return (
        _figures(figure(said, *(titled(one.title, points(one)) for one in found), wide=True))
        if found
        else None
    )


def _charts(said: str, charts: Sequence[Chart]) -> Markup | None:
    drawn = (
        titled(one.panel.title, plot(one.panel, one.lines, one.across, one.up, one.mark))
        for one in charts
    )
    return _figures(figure(said, *drawn, wide=True)) if charts else None


def _figures(drawn: Markup) -> Markup:
    return tag("div", drawn, class_="figures charts")
