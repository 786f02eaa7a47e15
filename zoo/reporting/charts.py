"""Altair charts of panels, for HTML pages and for figures, and files of figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import altair as alt
import torch
import vl_convert
from torch import Tensor

from zoo.packages import explain_imports
from zoo.reporting import numbers
from zoo.reporting.cuts import (
    ARROWS,
    NOTE,
    Cut,
    clamp,
    find_side,
    list_cuts,
    list_line_cuts,
    list_point_cuts,
)
from zoo.reporting.heatmaps import draw_heatmap, draw_heatmap_grid, draw_named_heatmap
from zoo.reporting.panel import (
    Bars,
    Curves,
    Heatmap,
    HeatmapGrid,
    Line,
    LineChart,
    NamedHeatmap,
    Panel,
    Points,
    Scale,
    fit_height,
    fit_scale,
)
from zoo.reporting.style import (
    LIGHT,
    Chart,
    Palette,
    Style,
    clean,
    finish_chart,
    label_expression,
    start_chart,
    x_axis,
    y_axis,
)
from zoo.utils import name_file

FEW_POINTS = 12  # largest number of points of a line that are marked
BUCKETS = 160  # stretches of a long line, each reduced to its lowest and its highest value
BAR_STEP = 22
SQUARE = 300.0  # width and height of a plot of a page with equal units on both axes
MARGIN = 0.05  # of an axis without negative values, before 0
# A font that comes with vl-convert, so that files are the same on all machines.
FONT = "Liberation Sans"
SIMILAR_FONTS = "Arial, Helvetica, sans-serif"
FORMATS = (".png", ".svg", ".pdf")
"""Suffixes of the files of a figure."""
DASHES = ([1, 0], [6, 3], [2, 3])
# How the text of an arrow is placed, so that it points at the edge from inside the plot.
ARROW_PLACES: dict[str, dict[str, Any]] = {
    "left": {"align": "left", "baseline": "middle"},
    "right": {"align": "right", "baseline": "middle"},
    "up": {"align": "center", "baseline": "top"},
    "down": {"align": "center", "baseline": "bottom"},
}


def draw_panel(panel: Panel, style: Style) -> Chart:
    """Return the chart of a panel of any kind."""
    match panel:
        case Curves():
            return draw_lines(panel.to_line_chart(), style)
        case LineChart():
            return draw_lines(panel, style)
        case Points():
            return draw_points(panel, style)
        case Heatmap():
            return draw_heatmap(panel, style)
        case NamedHeatmap():
            return draw_named_heatmap(panel, style)
        case HeatmapGrid():
            return draw_heatmap_grid(panel, style)
        case Bars():
            return draw_bars(panel, style)
    raise TypeError(f"no chart for {type(panel).__name__}")


def draw_panels(panels: Sequence[Panel], style: Style) -> Chart:
    """Return the charts of several panels, two in a row."""
    drawn = [draw_panel(panel, style) for panel in panels]
    return alt.concat(*drawn, columns=2, spacing=30).resolve_scale(color="independent")


def save_figure(chart: Chart, path: Path, *, scale: float = 2.0) -> None:
    """Write a chart as SVG or PDF where its name ends so, and else as a PNG with few colours."""
    with name_file(path):
        path.write_bytes(_encode(to_svg(chart), path.suffix, scale))


def save_formats(chart: Chart, path: Path) -> list[Path]:
    """Write a chart as a PNG file, and as SVG and PDF next to it; return their paths."""
    paths = []
    for suffix, content in render_formats(chart).items():
        paths.append(path.with_suffix(suffix))
        with name_file(paths[-1]):
            paths[-1].write_bytes(content)
    return paths


def render_formats(chart: Chart) -> dict[str, bytes]:
    """Return a chart as {suffix of a file: its content}: PNG, SVG and PDF of the same drawing."""
    svg = to_svg(chart)
    return {suffix: _encode(svg, suffix) for suffix in FORMATS}


def _encode(svg: str, suffix: str, scale: float = 2.0) -> bytes:
    if suffix == ".svg":
        # fonts of the same widths, where that of zoo is not installed
        fonts = f'font-family="{FONT}, {SIMILAR_FONTS}"'
        return svg.replace(f'font-family="{FONT}"', fonts).encode()
    if suffix == ".pdf":
        pdf: bytes = vl_convert.svg_to_pdf(svg)
        return pdf
    return to_png(svg, scale=scale)


def to_svg(chart: Chart) -> str:
    """Render a chart on a white background."""
    svg: str = vl_convert.vegalite_to_svg(to_spec(chart, LIGHT, "#ffffff"))
    return svg


def to_png(svg: str, *, scale: float = 2.0) -> bytes:
    """Render a drawing as a PNG with few colours."""
    with explain_imports():
        from PIL import Image

    # A palette of 256 colours makes the file smaller, without a visible difference.
    image, file = Image.open(BytesIO(vl_convert.svg_to_png(svg, scale=scale))), BytesIO()
    image.convert("RGB").quantize(dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return file.getvalue()


def finish(chart: Chart) -> Chart:
    """Return a chart with the common settings, for notebooks, in which it can be changed."""
    finished: Chart = alt.Chart.from_dict(to_spec(chart, LIGHT, "#ffffff"), validate=False)
    return finished


def to_spec(chart: Chart, palette: Palette, background: str | None) -> dict[str, Any]:
    """Return the Vega-Lite specification of a chart with the common settings."""
    texts = {"labelColor": palette.quiet, "titleColor": palette.quiet, "titleFontWeight": "normal"}
    axis = texts | {
        "labelFontSize": 12 if background is None else 10,
        "titleFontSize": 11,
        "labelPadding": 5,
        "titlePadding": 8,
        "gridColor": palette.rule,
        "domainColor": palette.faint,
        "tickColor": palette.faint,
        "tickSize": 4,
        "aria": False,
    }
    spec: dict[str, Any] = chart.to_dict(validate=False)
    spec["background"] = background
    spec["padding"] = 6
    spec["config"] = {
        "font": FONT,
        "view": {"stroke": None},
        "axis": axis,
        "legend": texts | {"labelFontSize": 10, "titleFontSize": 10, "aria": False},
        "mark": {"aria": False},
    }
    return spec


def draw_lines(panel: LineChart, style: Style) -> Chart:
    """Draw lines with their bands, the dotted rule and marked points.

    What lies beyond an axis is cut at the edge of the plot, where an arrow marks it.
    """
    x_scale, y_scale = fit_scales(panel)
    x = x_axis("x", panel.x, x_scale, style)
    y = y_axis("y", y_scale, style)
    # Series are named by number, because labels may repeat.
    names = [line.label for line in panel.lines]
    colours = line_colours(panel.lines, style.palette)
    cuts = list_line_cuts(panel, x_scale, y_scale)

    # Layers from back to front: the rule, bands, lines, points, values as text, and arrows.
    layers = [*_draw_rule(panel, x_scale, style)]
    for line, colour in zip(panel.lines, colours, strict=True):
        if line.band:
            rows = _rows(x=line.x, low=line.band[0], high=line.band[1])
            band = start_chart(rows).mark_area(color=colour, opacity=0.16, clip=True)
            layers.append(band.encode(x=x, y=y_axis("low", y_scale, style), y2=alt.Y2("high")))

    drawn = [
        (number, *thin_line(line.x.double(), line.y.double()))
        for number, line in enumerate(panel.lines)
    ]
    rows = [{"series": str(n)} | row for n, xs, ys in drawn for row in _rows(x=xs, y=ys)]
    base = start_chart(rows).encode(x=x, y=y)
    if panel.connected:
        encoding = _colour_encoding(names, colours, style, dashed=len(set(colours)) > 8)
        # Between two points nothing is known, which a dashed line says. Without a need for it,
        # clipping would halve a line along the edge.
        dash = [3, 4] if _joins_two_points(panel) else alt.Undefined
        lines = base.mark_line(
            strokeWidth=1.7, strokeCap="round", strokeJoin="round", clip=bool(cuts), strokeDash=dash
        )
        layers.append(lines.encode(**encoding))
    few = [{"series": str(number)} | row for number, row in list_dots(panel)]
    if few:
        dots = start_chart(few).mark_circle(size=24, opacity=1)
        encoding = _colour_encoding(names, colours, style, dashed=False)
        layers.append(dots.encode(x=x, y=y, **encoding))
    if panel.shows_values:
        shown = [row for row in rows if _is_inside(row, x_scale, y_scale)]
        texts = start_chart(shown).encode(x=x, y=y)
        texts = texts.mark_text(dx=4, dy=-9, align="left", color=style.palette.ink)
        layers.append(texts.encode(text=alt.Text("y:Q", format=".3f")))
    layers += _draw_cuts(cuts, x, y, names, colours, style)
    return finish_chart(alt.layer(*layers), _note_cuts(panel, cuts), style)


def draw_points(panel: Points, style: Style) -> Chart:
    """Draw a scatter plot with a colour for each group.

    Points beyond an axis are arrows at the edge of the plot.
    """
    x_scale, y_scale = fit_point_scales(panel)
    names = list(panel.groups)
    colours = [style.palette.colour(number, len(names)) for number in range(len(names))]
    cuts = list_point_cuts(panel, x_scale, y_scale)
    rows = [{"series": str(number)} | row for number, row in list_dots(panel)]
    x, y = x_axis("x", panel.x, x_scale, style), y_axis("y", y_scale, style)
    chart = start_chart(rows).mark_circle(size=26 if len(rows) > 12 else 60, opacity=0.85)
    chart = chart.encode(x=x, y=y, **_colour_encoding(names, colours, style, dashed=False))
    name = f"{panel.y} \u00b7 {panel.note}" if panel.note else panel.y
    layers = [chart, *_draw_cuts(cuts, x, y, names, colours, style)]
    if panel.square:
        style = _fit_units(style, x_scale, y_scale)
    noted = _note_cuts(replace(panel, y=name), cuts)
    return finish_chart(alt.layer(*layers), noted, style, fit="pad" if panel.square else "fit")


def draw_bars(panel: Bars, style: Style) -> Chart:
    """Draw a bar from 0 for each name, with its value at the end."""
    # Bars start at 0, so the scale contains it. An infinite bar ends with the scale, and an arrow
    # says so; a missing value has no bar but a text.
    finite = [value for value in panel.values.values() if math.isfinite(value)]
    low, high = min([0.0, *finite]), max([0.0, *finite])
    scale = Scale(low, high if high > low else low + 1.0)
    rows = []
    for number, value in enumerate(panel.values.values()):
        end = 0.0 if math.isnan(value) else clamp(value, scale)
        side = find_side(value, scale)
        arrow = f"{ARROWS['right' if side > 0 else 'left']} " if side else ""
        label = f"{arrow}{numbers.format_number(value)}"
        rows.append(
            {"name": str(number), "value": end, "end": 0.0, "text": label, "at": max(0.0, end)}
        )
    names = alt.Y(
        "name:N",
        sort=None,
        title=None,
        axis=alt.Axis(
            labelExpr=label_expression(panel.values), ticks=False, domain=False, labelLimit=180
        ),
    )
    base = start_chart(rows).encode(y=names)
    # The domain leaves room for the text behind the longest bar.
    domain = alt.Scale(domain=[scale.low, scale.high + 0.14 * (scale.high - scale.low)])
    length = alt.X("value:Q", scale=domain, axis=None)
    bars = base.mark_bar(color=style.palette.series[0], size=12, cornerRadius=1)
    texts = base.mark_text(align="left", dx=6, color=style.palette.quiet)
    chart = alt.layer(
        bars.encode(x=length, x2=alt.X2("end")),
        texts.encode(x=alt.X("at:Q", scale=domain, axis=None), text=alt.Text("text:N")),
    )
    style = replace(style, height=BAR_STEP * max(len(rows), 1))
    return finish_chart(chart, panel, style, fit="fit-x")


def fit_scales(panel: LineChart) -> tuple[Scale, Scale]:
    """Return the scales of a line chart; missing ones are fitted to its lines and bands."""
    held = [part for line in panel.lines for part in (line.y, *(line.band or ()))]
    x_scale = panel.x_scale or fit_scale(line.x for line in panel.lines)
    return x_scale, panel.y_scale or fit_height(held)


def fit_point_scales(panel: Points) -> tuple[Scale, Scale]:
    """Return the scales of a scatter plot; missing ones are fitted to its points."""
    groups = list(panel.groups.values())
    x_scale = panel.x_scale or fit_scale(x for x, _ in groups).widen()
    y_scale = panel.y_scale or fit_scale((y for _, y in groups), log=panel.steep).widen()
    if not panel.square:
        return x_scale, y_scale
    # one range around the origin; an axis without negative values begins next to it
    reach = max(abs(end) for s in (x_scale, y_scale) for end in (s.low, s.high))
    has_negative = [any(bool((pair[axis] < 0).any()) for pair in groups) for axis in (0, 1)]
    x_low, y_low = (-reach if is_signed else -MARGIN * reach for is_signed in has_negative)
    return Scale(x_low, reach), Scale(y_low, reach)


def _fit_units(style: Style, x_scale: Scale, y_scale: Scale) -> Style:
    """Return a style whose plot is as large as it can be with equal units on both axes."""
    width, height = (SQUARE, SQUARE) if style.is_page else (style.width, style.height)
    spans = x_scale.high - x_scale.low, y_scale.high - y_scale.low
    unit = min(width / spans[0], height / spans[1])
    return replace(style, width=unit * spans[0], height=unit * spans[1])


def line_colours(lines: Sequence[Line], palette: Palette) -> list[str]:
    """Return the colour of each line."""
    return [
        palette.colour(
            number if line.colour is None else line.colour,
            len(lines) if line.shades is None else line.shades,
        )
        for number, line in enumerate(lines)
    ]


def thin_line(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Reduce a long line to the lowest and the highest value of each stretch, and its ends."""
    if len(x) <= 2 * BUCKETS:
        return x, y
    # Extremes of short stretches keep spikes visible, which means would hide.
    parts = [torch.tensor([0, len(x) - 1])]
    for stretch in torch.arange(len(x)).chunk(BUCKETS):
        values = y[stretch]
        lowest = values.nan_to_num(torch.inf).argmin()
        highest = values.nan_to_num(-torch.inf).argmax()
        parts.append(stretch[0] + torch.stack([lowest, highest]))
    indices = torch.cat(parts).unique()
    return x[indices], y[indices]


def list_dots(panel: LineChart | Points) -> list[tuple[int, dict[str, Any]]]:
    """Return the series number and the coordinates of each dot, in the order of drawing."""
    if isinstance(panel, Points):
        x_scale, y_scale = fit_point_scales(panel)
        points = [(n, _rows(x=x, y=y)) for n, (x, y) in enumerate(panel.groups.values())]
    else:
        x_scale, y_scale = fit_scales(panel)
        points = [
            (n, _rows(x=line.x, y=line.y))
            for n, line in enumerate(panel.lines)
            if is_marked(panel, n)
        ]
    return [(n, row) for n, rows in points for row in rows if _is_inside(row, x_scale, y_scale)]


def is_marked(panel: LineChart, number: int) -> bool:
    """Return whether the points of a line are marked, because they are few or not connected."""
    return not panel.connected or len(panel.lines[number].x) <= FEW_POINTS


def _draw_rule(panel: LineChart, x_scale: Scale, style: Style) -> list[alt.Chart]:
    """Draw the dotted vertical line with its name, if it is within the chart."""
    if panel.rule is None or not x_scale.low <= panel.rule[0] <= x_scale.high:
        return []
    # The name is on the side of the line with more room.
    at, name = panel.rule
    is_right = x_scale(at) > 0.5
    base = start_chart([{"x": at, "name": clean(name)}])
    x = x_axis("x", panel.x, x_scale, style)
    rule = base.mark_rule(strokeDash=[2, 3], color=style.palette.quiet).encode(x=x)
    label = base.mark_text(
        align="right" if is_right else "left",
        dx=-5 if is_right else 5,
        baseline="bottom",
        color=style.palette.quiet,
    )
    # above the plot, where no line crosses it, though values of points would
    y = alt.value(style.height - 4 if panel.shows_values else -2)
    return [rule, label.encode(x=x, y=y, text=alt.Text("name:N"))]


def _colour_encoding(
    names: Sequence[str], colours: Sequence[str], style: Style, *, dashed: bool
) -> dict[str, Any]:
    """Return the encoding of series by colour and, if `dashed`, also by dashes."""
    # A page has its own legend, in HTML.
    keys = [str(number) for number in range(len(names))]
    legend = None
    if len(names) > 1 and style.has_legend and not style.is_page:
        legend = alt.Legend(title=None, labelExpr=label_expression(names), symbolLimit=60)
    scale = alt.Scale(domain=keys, range=list(colours))
    encoding: dict[str, Any] = {"color": alt.Color("series:N", scale=scale, legend=legend)}
    if dashed:
        dashes = [DASHES[number % len(DASHES)] for number in range(len(names))]
        scale = alt.Scale(domain=keys, range=dashes)
        encoding["strokeDash"] = alt.StrokeDash("series:N", scale=scale, legend=legend)
    return encoding


def _joins_two_points(panel: LineChart) -> bool:
    """Return whether no line of a chart has more than two points."""
    return panel.connected and all(len(line.x) <= 2 for line in panel.lines)


def _rows(**columns: Tensor) -> list[dict[str, Any]]:
    """Return a row for each value, with None for values that are not finite."""
    finite = (
        [value if math.isfinite(value) else None for value in column.double().tolist()]
        for column in columns.values()
    )
    return [dict(zip(columns, row, strict=True)) for row in zip(*finite, strict=True)]


def _is_inside(row: Mapping[str, Any], x_scale: Scale, y_scale: Scale) -> bool:
    """Return whether a point with coordinates `x` and `y` lies within the plot."""
    x, y = row["x"], row["y"]
    return x is not None and y is not None and not any(list_cuts(0, [x], [y], x_scale, y_scale))


def _note_cuts(panel: Panel, cuts: Sequence[Cut]) -> Panel:
    """Return a panel whose vertical axis says what its arrows mean, if there are any."""
    return replace(panel, y=f"{panel.y} \u00b7 {NOTE}") if cuts else panel


def _draw_cuts(
    cuts: Sequence[Cut],
    x: alt.X,
    y: alt.Y,
    names: Sequence[str],
    colours: Sequence[str],
    style: Style,
) -> list[alt.Chart]:
    """Return the layers of arrows, one for each direction."""
    layers = []
    for towards, place in ARROW_PLACES.items():
        rows = [
            {"x": cut.x, "y": cut.y, "series": str(cut.series), "arrow": ARROWS[cut.towards]}
            for cut in cuts
            if cut.towards == towards
        ]
        if rows:
            arrows = start_chart(rows).mark_text(fontSize=11, **place)
            encoding = _colour_encoding(names, colours, style, dashed=False)
            layers.append(arrows.encode(x=x, y=y, text=alt.Text("arrow:N"), **encoding))
    return layers
