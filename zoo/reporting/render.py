"""Charts as SVG for pages, rendered offline by vl-convert."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import vl_convert
from markupsafe import Markup, escape

from zoo.reporting import charts, heatmaps, numbers
from zoo.reporting.panel import Curves, Heatmap, HeatmapGrid, LineChart, Panel, Points
from zoo.reporting.style import VARIABLES, Chart, Style, clean

PAGE = Style(VARIABLES, 400, 232, is_page=True)


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A chart in a page, with the parts that the HTML of the page shows.

    Args:
        svg: The chart, in the colours of the page.
        legend: Colour and name of each series; empty for one series.
        scale: Lower end, upper end and unit of a colour scale as text, and the name of its ramp.
        data: JSON with which the page's script shows numbers under the pointer.
        axes: Names of the horizontal and the vertical axis, if the chart does not show them.
    """

    svg: Markup
    legend: Sequence[tuple[str, str]] = ()
    scale: tuple[str, str, str, str] | None = None
    data: str = "{}"
    axes: tuple[str, str] | None = None


@dataclass(frozen=True)
class TitledDrawing:
    """A drawing with the title of its panel."""

    title: str
    drawing: Drawing


@dataclass(frozen=True)
class Figure:
    """Charts with a common caption."""

    caption: str
    panels: list[TitledDrawing]
    columns: int | None


def draw_figures(panels: Sequence[Panel], columns: int | None = None) -> list[Figure]:
    """Return the figures of panels. Consecutive panels with one caption share a figure.

    Args:
        panels: The panels.
        columns: Number of charts in a row; None for as many as fit.
    """
    return [
        Figure(caption, [TitledDrawing(one.title, draw_for_page(one)) for one in group], columns)
        for caption, group in groupby(panels, lambda panel: panel.full_caption)
    ]


def draw_for_page(panel: Panel) -> Drawing:
    """Draw a panel for a page, without its title and its caption, which the page shows."""
    if isinstance(panel, Curves):
        panel = panel.to_line_chart()
    svg = _to_svg(charts.draw_panel(panel, PAGE), panel.title)
    match panel:
        case LineChart():
            return _describe_lines(svg, panel)
        case Points():
            return _describe_points(svg, panel)
        case Heatmap():
            return _describe_map(
                svg, panel, panel.signed, heatmaps.step_between_values(panel.values)
            )
        case HeatmapGrid():
            return _describe_map(svg, panel, heatmaps.has_negative(panel.values), 1)
    return Drawing(svg=svg)


def _describe_lines(svg: Markup, panel: LineChart) -> Drawing:
    # The script finds the lines, points and bands of the SVG by their order.
    colours = charts.line_colours(panel.lines, VARIABLES)
    legend = [(colour, line.label) for colour, line in zip(colours, panel.lines, strict=True)]
    drawn = [number for number, line in enumerate(panel.lines) if len(line.x)]
    dots = [number for number, _ in charts.list_dots(panel)]
    x_scale, y_scale = charts.fit_scales(panel)
    data = {
        "series": legend,
        "lines": drawn if panel.connected else [],
        "dots": dots,
        "bands": [number for number, line in enumerate(panel.lines) if line.band],
        "x": [x_scale.low, x_scale.high, x_scale.log],
        "y": [y_scale.low, y_scale.high, y_scale.log],
    }
    return Drawing(svg=svg, legend=legend if len(legend) > 1 else (), data=json.dumps(data))


def _describe_points(svg: Markup, panel: Points) -> Drawing:
    names = list(panel.groups)
    legend = [(VARIABLES.colour(n, len(names)), name) for n, name in enumerate(names)]
    dots = [number for number, _ in charts.list_dots(panel)]
    data = {"series": legend, "lines": [], "dots": dots, "bands": []}
    return Drawing(svg=svg, legend=legend if len(legend) > 1 else (), data=json.dumps(data))


def _describe_map(svg: Markup, panel: Heatmap | HeatmapGrid, signed: bool, step: int) -> Drawing:
    low, high = heatmaps.find_ends(panel.values, signed)
    unit = panel.unit if step == 1 else f"{panel.unit}; one of {step} rows and columns is drawn"
    texts = (numbers.format_number(low, 3), numbers.format_number(high, 3))
    data = {"ends": [low, high], "corner": panel.corner, "every": step}
    return Drawing(
        svg=svg,
        scale=(*texts, unit, "signed" if signed else "weights"),
        data=json.dumps(data),
        axes=(panel.x, panel.y) if isinstance(panel, HeatmapGrid) else None,
    )


def _to_svg(chart: Chart, title: str) -> Markup:
    """Render a chart as SVG without size and fonts, which the page sets."""
    svg = vl_convert.vegalite_to_svg(charts.to_spec(chart, VARIABLES, None))
    sides = re.search(r'viewBox="0 0 (\S+) (\S+)"', svg)
    assert sides
    # A common least width gives letters the same size in all charts.
    box = f"0 0 {max(float(sides[1]), PAGE.width):g} {sides[2]}"
    head = f'<svg viewBox="{box}" role="img" aria-label="{escape(clean(title))}">'
    body = svg[svg.index(">") + 1 :]
    # Remove attributes without effect, fonts, and empty paths, which are most of the file.
    body = re.sub(r' (?:aria-hidden|pointer-events|opacity)="(?:true|none|1)"', "", body)
    body = re.sub(r' font-(?:family|size)="[^"]*"', "", body)
    body = re.sub(
        r'<path class="(?:back|fore)ground" d="(?:M0,0h0v0h0Z)?"(?: display="none")?/>', "", body
    )
    body = body.replace("xlink:href", "href")
    return Markup(head + body)
