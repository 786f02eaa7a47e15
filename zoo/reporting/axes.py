"""Axes, titles and sizes that all charts share."""

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
    """How charts are drawn.

    Args:
        palette: Colours.
        width: Width of the whole chart in a page, of the plot on paper, in pixels.
        height: Height, measured alike.
        is_page: True leaves the title, the legend and the colour scale to the page.
        has_legend: False leaves out the legend on paper too.
    """

    palette: Palette = LIGHT
    width: float = 300
    height: float = 190
    is_page: bool = False
    has_legend: bool = True


def start_chart(rows: Sequence[Mapping[str, Any]]) -> alt.Chart:
    """Return a chart of rows, without marks yet."""
    # as one string: Altair copies its data again and again
    data = alt.Data(values=json.dumps(rows), format=alt.DataFormat(type="json"))  # type: ignore[no-untyped-call]
    return alt.Chart(data)


def x_axis(field: str, name: str, scale: Scale, style: Style) -> alt.X:
    """Return the horizontal encoding of a field, with a line at 0."""
    axis = _axis(scale, 6, gridColor=_mark_zero(style, "transparent"))
    return alt.X(f"{field}:Q", title=clean(name), scale=_vega_scale(scale), axis=axis)


def y_axis(field: str, scale: Scale, style: Style) -> alt.Y:
    """Return the vertical encoding of a field; the name of the axis stands above the chart."""
    grid = _mark_zero(style, style.palette.rule)
    axis = _axis(scale, 5, gridColor=grid, domain=False, ticks=False)
    return alt.Y(f"{field}:Q", title=None, scale=_vega_scale(scale), axis=axis)


def label_expression(labels: Sequence[str] | Mapping[str, Any]) -> str:
    """Return a Vega expression that shows a label in place of its index."""
    return f"{json.dumps([clean(label) for label in labels])}[datum.value]"


def clean(text: str) -> str:
    """Replace characters that HTML, XML or UTF-8 cannot hold."""
    return numbers.UNPRINTABLE.sub("\ufffd", text)


def finish_chart(
    chart: Chart, panel: Panel, style: Style, *, fit: Literal["fit", "fit-x", "pad"] = "fit"
) -> Chart:
    """Give a chart its sides and its title: the name of the y axis in a page."""
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
    """Build the title of a chart on paper, with the y axis as its subtitle."""
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
    ticks = scale.ticks or (scale.powers(count) if scale.log else ())
    if ticks:
        names = [scale.labels.get(tick, numbers.format_number(tick, 5)) for tick in ticks]
        labels = json.dumps([clean(name) for name in names])
        found = f"{labels}[indexof({json.dumps(ticks)}, datum.value)]"
        return alt.Axis(values=list(ticks), labelExpr=found, **options)
    return alt.Axis(tickCount=count, **options)


def _mark_zero(style: Style, otherwise: str) -> Any:
    """Return the colour of grid lines, with that of 0 set off."""
    return alt.condition("datum.value === 0", alt.value(style.palette.faint), alt.value(otherwise))
