"""Cuts of a chart: values beyond an axis, each shown as an arrow at the edge of the plot.

An axis may end before the data does, as a logarithmic one does before 0, or because an outlier
would squeeze all other values. What lies beyond is not left out silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import isnan
from typing import Literal, NamedTuple

from torch import Tensor

from zoo.reporting.panel import LineChart, Points, Scale

Direction = Literal["left", "right", "up", "down"]
ARROWS: dict[Direction, str] = {
    "left": "\u25c4",
    "right": "\u25ba",
    "up": "\u25b2",
    "down": "\u25bc",
}
NOTE = "arrows: beyond the axis"
PLACES = 24
"""Arrows of a series along an edge; values that are nearer to each other share one."""
TOLERANCE = 1e-6
"""Share of an axis by which a value may lie beyond its end, for rounding."""


class Cut(NamedTuple):
    """An arrow at the edge of a plot, in the units of the axes."""

    series: int
    x: float
    y: float
    towards: Direction


def find_side(value: float, scale: Scale) -> int:
    """Return the side of one value, as `list_sides` does."""
    return list_sides([value], scale)[0]


def list_sides(values: Sequence[float], scale: Scale) -> list[int]:
    """Return -1 for a value before the start of an axis, 1 for one past its end, else 0.

    A missing value (NaN) is on no side. On a logarithmic axis, 0 and negative values are before
    the start.
    """
    # in one call for all points of a line
    reach = TOLERANCE * (scale.high - scale.low)
    low, high = scale.low - reach, scale.high + reach
    return [(value > high) - (value < low or (scale.log and value <= 0)) for value in values]


def clamp(value: float, scale: Scale) -> float:
    """Return a value, or the end of the axis that it lies beyond."""
    return min(max(value, scale.low), scale.high)


def list_line_cuts(panel: LineChart, x_scale: Scale, y_scale: Scale) -> list[Cut]:
    """Return the arrows of lines and bands."""
    cuts: list[Cut] = []
    for series, line in enumerate(panel.lines):
        low, high = line.band or (line.y, line.y)
        for y, sides in ((line.y, (-1, 1)), (low, (-1,)), (high, (1,))):
            cuts += _find_runs(series, line.x, y, x_scale, y_scale, sides)
    return _thin(cuts, x_scale, y_scale)


def list_point_cuts(panel: Points, x_scale: Scale, y_scale: Scale) -> list[Cut]:
    """Return the arrows of points."""
    cuts = [
        cut
        for series, (xs, ys) in enumerate(panel.groups.values())
        for cut in list_cuts(series, xs.double().tolist(), ys.double().tolist(), x_scale, y_scale)
        if cut is not None
    ]
    return _thin(cuts, x_scale, y_scale)


def list_cuts(
    series: int, xs: Sequence[float], ys: Sequence[float], x_scale: Scale, y_scale: Scale
) -> list[Cut | None]:
    """Return the arrow of each point that lies beyond an axis; None if it is inside, or missing."""
    cuts: list[Cut | None] = []
    sides = zip(xs, ys, list_sides(xs, x_scale), list_sides(ys, y_scale), strict=True)
    for x, y, across, along in sides:
        if (not across and not along) or isnan(x) or isnan(y):
            cuts.append(None)
            continue
        towards: Direction = "up" if along > 0 else "down"
        if not along:
            towards = "right" if across > 0 else "left"
        cuts.append(Cut(series, clamp(x, x_scale), clamp(y, y_scale), towards))
    return cuts


def _find_runs(
    series: int, x: Tensor, y: Tensor, x_scale: Scale, y_scale: Scale, sides: Sequence[int]
) -> Iterator[Cut]:
    """Yield an arrow for each run of values beyond the same edge, at the furthest of them."""
    xs, ys = x.double().tolist(), y.double().tolist()
    cuts = list_cuts(series, xs, ys, x_scale, y_scale)
    if not any(cuts):
        return
    pairs = zip(ys, cuts, strict=True)
    for towards, run in groupby(pairs, key=lambda pair: pair[1] and pair[1].towards):
        if towards is None or (towards == "up" and 1 not in sides):
            continue
        if towards == "down" and -1 not in sides:
            continue
        # one arrow for a run of points, which would cover each other
        furthest = max if towards == "up" else min
        cut = furthest(run, key=lambda pair: pair[0])[1]
        assert cut is not None
        yield cut


def _thin(cuts: Sequence[Cut], x_scale: Scale, y_scale: Scale) -> list[Cut]:
    """Leave one arrow of a series for each place along an edge."""

    def place(cut: Cut) -> tuple[int, Direction, int]:
        share = x_scale(cut.x) if cut.towards in ("up", "down") else y_scale(cut.y)
        return cut.series, cut.towards, round(share * PLACES)

    return list({place(cut): cut for cut in cuts}.values())
