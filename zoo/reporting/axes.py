"""Axes, titles and sizes of all charts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt

from zoo.reporting import numbers
from zoo.reporting.palette import LIGHT, Palette
from zoo.reporting.panel import Panel, Scale

Chart = alt.Chart | alt.LayerChart | alt.ConcatChart | alt.FacetChart


@dataclass(frozen=True)
class Style:
    """The style of charts, for HTML pages or for figures.

    Args:
        palette: The colours.
        width: Width in pixels: of the chart in a page, of the plot in a figure.
        height: Height in pixels, of the same part.
        is_page: The page shows the title, the legend and the colour scale itself.
        has_legend: Draw the legend in a figure.
    """

    palette: Palette = LIGHT
    width: float = 300
    height: float = 190
    is_page: bool = False
    has_legend: bool = True


def start_chart(rows: Sequence[Mapping[str, Any]]) -> alt.Chart:
    """Return a chart of rows without marks."""
    # One string, because Altair copies its data many times.
    data = alt.Data(values=json.dumps(rows), format=alt.DataFormat(type="json"))  # type: ignore[no-untyped-call]
    return alt.Chart(data)


def x_axis(field: str, name: str, scale: Scale, style: Style) -> alt.X:
    """Return the horizontal encoding of a field, with a line at 0."""
    axis = _axis(scale, 6, gridColor=_mark_zero(style, "transparent"))
    return alt.X(f"{field}:Q", title=clean(name), scale=_vega_scale(scale), axis=axis)


def y_axis(field: str, scale: Scale, style: Style) -> alt.Y:
    """Return the vertical encoding of a field. The name of the axis is above the chart."""
    grid = _mark_zero(style, style.palette.rule)
    axis = _axis(scale, 5, gridColor=grid, domain=False, ticks=False)
    return alt.Y(f"{field}:Q", title=None, scale=_vega_scale(scale), axis=axis)


def label_expression(labels: Sequence[str] | Mapping[str, Any]) -> str:
    """Return a Vega expression that replaces an index by its label."""
    return f"{json.dumps([clean(label) for label in labels])}[datum.value]"


def clean(text: str) -> str:
    """Replace characters that HTML, XML or UTF-8 cannot represent."""
    return numbers.UNPRINTABLE.sub("\ufffd", text)


def finish_chart(
    chart: Chart, panel: Panel, style: Style, *, fit: Literal["fit", "fit-x", "pad"] = "fit"
) -> Chart:
    """Set the size and the title of a chart. In a page the title is the name of the y axis."""
    if style.is_page:
        title = alt.Title(
            clean(panel.y),
            anchor="start",
            frame="bounds",
            fontWeight="normal",
            fontSize=11,
            offset=10,
            color=style.palette.quiet,
        )
        autosize = alt.AutoSizeParams(type=fit, contains="padding")
        return chart.properties(
            width=style.width, height=style.height, title=title, autosize=autosize
        )
    return chart.properties(width=style.width, height=style.height, title=paper_title(panel, style))


def paper_title(panel: Panel, style: Style) -> alt.Title:
    """Return the title of a figure, with the name of the y axis as its subtitle."""
    return alt.Title(
        clean(panel.title),
        subtitle=clean(panel.y),
        anchor="start",
        frame="group",
        fontSize=12,
        offset=10,
        color=style.palette.ink,
        subtitleColor=style.palette.quiet,
    )


def _vega_scale(scale: Scale) -> alt.Scale:
    kind: Literal["log", "linear"] = "log" if scale.log else "linear"
    return alt.Scale(domain=[scale.low, scale.high], nice=False, zero=False, type=kind)


def _axis(scale: Scale, count: int, **options: Any) -> alt.Axis:
    # Explicit ticks need labels; Vega chooses round numbers on a linear axis.
    ticks = scale.ticks or (scale.powers(count) if scale.log else ())
    if ticks:
        names = [scale.labels.get(tick, numbers.format_number(tick, 5)) for tick in ticks]
        labels = json.dumps([clean(name) for name in names])
        found = f"{labels}[indexof({json.dumps(ticks)}, datum.value)]"
        return alt.Axis(values=list(ticks), labelExpr=found, **options)
    return alt.Axis(tickCount=count, **options)


def _mark_zero(style: Style, otherwise: str) -> Any:
    """Return the colour of grid lines, with another one for the line at 0."""
    return alt.condition("datum.value === 0", alt.value(style.palette.faint), alt.value(otherwise))
