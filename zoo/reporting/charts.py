"""Panels as Altair charts, in the colours of a page or on paper."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any, Literal

import altair as alt
import torch
from torch import Tensor

from zoo.reporting import numbers
from zoo.reporting.palette import LEVELS, LIGHT, Palette, channels, mix
from zoo.reporting.panel import Bars, Curves, Heatmap, HeatmapGrid, Line, LineChart, Panel, Points
from zoo.reporting.scale import Scale, fit_height, fit_scale

Chart = alt.Chart | alt.LayerChart | alt.ConcatChart | alt.FacetChart

FEW_POINTS = 12  # of a line, up to which each is marked
BUCKETS = 160  # stretches of a long line, each drawn by its lowest and its highest value
MAX_SIDE = 256  # values along a side of a heat map that are drawn
MAX_RATIO = 3.0  # of the sides of a heat map; a longer one has cells that are not square
BAR_STEP = 22
DASHES = ([1, 0], [6, 3], [2, 3])


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
        case HeatmapGrid():
            return draw_heatmap_grid(panel, style)
        case Bars():
            return draw_bars(panel, style)
    raise TypeError(f"no chart for {type(panel).__name__}")


def draw_lines(panel: LineChart, style: Style) -> Chart:
    """Draw lines with their bands and the dotted rule."""
    x_scale, y_scale = fit_scales(panel)
    x = x_axis("x", panel.x, x_scale, style)
    y = y_axis("y", y_scale, style)
    names = [line.label for line in panel.lines]
    colours = line_colours(panel.lines, style.palette)

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
        layers.append(
            base.mark_line(strokeWidth=1.7, strokeCap="round", strokeJoin="round").encode(
                **encoding
            )
        )
    few = [row for row in rows if row["y"] is not None and is_marked(panel, int(row["series"]))]
    if few:
        dots = start_chart(few).mark_circle(size=24, opacity=1)
        encoding = _colour_encoding(names, colours, style, dashed=False)
        layers.append(dots.encode(x=x, y=y, **encoding))
    if panel.shows_values:
        texts = base.mark_text(dx=4, dy=-9, align="left", color=style.palette.ink)
        layers.append(texts.encode(text=alt.Text("y:Q", format=".3f")))
    return _finish(alt.layer(*layers), panel, style)


def draw_points(panel: Points, style: Style) -> Chart:
    """Draw a scatter plot with a colour for each group."""
    groups = list(panel.groups.values())
    x_scale = fit_scale(x for x, _ in groups).widen()
    y_scale = fit_scale((y for _, y in groups), log=panel.steep).widen()
    if panel.square:
        reach = max(abs(end) for s in (x_scale, y_scale) for end in (s.low, s.high))
        ratio = 1.95 if style.is_page else style.width / style.height
        x_scale, y_scale = Scale(-reach * ratio, reach * ratio), Scale(-reach, reach)

    names = list(panel.groups)
    colours = [style.palette.colour(number, len(names)) for number in range(len(names))]
    rows = [{"series": str(number)} | row for number, row in points_of_groups(panel)]
    chart = start_chart(rows).mark_circle(size=26 if len(rows) > 40 else 60, opacity=0.85)
    chart = chart.encode(
        x=x_axis("x", panel.x, x_scale, style),
        y=y_axis("y", y_scale, style),
        **_colour_encoding(names, colours, style, dashed=False),
    )
    y = f"{panel.y} \u00b7 {panel.note}" if panel.note else panel.y
    return _finish(alt.layer(chart), replace(panel, y=y), style)


def draw_bars(panel: Bars, style: Style) -> Chart:
    """Draw a bar for each name, from 0, with its value behind it."""
    finite = [value for value in panel.values.values() if numbers.is_finite(value)]
    low, high = min([0.0, *finite]), max([0.0, *finite])
    scale = Scale(low, high if high > low else low + 1.0)
    rows = [
        {"name": str(n), "value": value if numbers.is_finite(value) else 0.0, "end": 0.0}
        | {"text": numbers.format_number(value), "at": max(0.0, value if value == value else 0.0)}
        for n, value in enumerate(panel.values.values())
    ]
    names = alt.Y(
        "name:N",
        sort=None,
        title=None,
        axis=alt.Axis(
            labelExpr=label_expression(panel.values), ticks=False, domain=False, labelLimit=180
        ),
    )
    base = start_chart(rows).encode(y=names)
    domain = alt.Scale(domain=[scale.low, scale.high + 0.14 * (scale.high - scale.low)])
    length = alt.X("value:Q", scale=domain, axis=None)
    bars = base.mark_bar(color=style.palette.series[0], size=12, cornerRadius=1)
    texts = base.mark_text(align="left", dx=6, color=style.palette.quiet)
    chart = alt.layer(
        bars.encode(x=length, x2=alt.X2("end")),
        texts.encode(x=alt.X("at:Q", scale=domain, axis=None), text=alt.Text("text:N")),
    )
    style = replace(style, height=BAR_STEP * max(len(rows), 1))
    return _finish(chart, panel, style, fit="fit-x")


def draw_heatmap(panel: Heatmap, style: Style) -> Chart:
    """Draw one heat map with its axes; a large one is drawn by some of its rows and columns."""
    ends = find_ends(panel.values, panel.signed)
    every = step_between_values(panel.values)
    width, height = _plot_sides(panel.values, style)
    chart = _image_chart(
        panel, panel.values[::every, ::every], ends, panel.signed, style, axes=True
    )
    if not style.is_page:
        chart = alt.layer(chart, _colour_scale(ends, panel.unit, panel.signed, style))
    sized = replace(style, width=width, height=height)
    return _finish(chart, panel, sized, fit="pad")


def draw_heatmap_grid(panel: HeatmapGrid, style: Style) -> Chart:
    """Draw small heat maps side by side, each with its label, on one colour scale."""
    signed = has_negative(panel.values)
    ends = find_ends(panel.values, signed)
    columns = columns_of_grid(len(panel.labels)) if style.is_page else 2
    width = min(130.0, (style.width - 12 * (columns - 1)) / columns)
    palette = style.palette
    tiles = []
    for values, label in zip(panel.values, panel.labels, strict=True):
        rows, count = values.shape
        ratio = rows / count
        title = alt.Title(
            clean(label), anchor="start", fontWeight="normal", fontSize=10, color=palette.quiet
        )
        tile = _image_chart(panel, values, ends, signed, style, axes=False)
        height = width * (ratio if 1 / MAX_RATIO <= ratio <= MAX_RATIO else 1.0)
        tiles.append(tile.properties(width=width, height=height, title=title))
    if not style.is_page:
        tiles[-1] = alt.layer(tiles[-1], _colour_scale(ends, panel.unit, signed, style))

    chart = alt.concat(*tiles, columns=columns, spacing=12)
    if style.is_page:
        return chart
    subtitle = f"\u2192 {panel.x}   \u2193 {panel.y}"
    return chart.properties(title=_paper_title(replace(panel, y=subtitle), style))


# Parts that pages and figures of other packages use too.


def start_chart(rows: Sequence[Mapping[str, Any]]) -> alt.Chart:
    """Return a chart of rows, without marks yet."""
    # as one string: Altair copies its data again and again
    data = alt.Data(values=json.dumps(rows), format=alt.DataFormat(type="json"))  # type: ignore[no-untyped-call]
    return alt.Chart(data)


def fit_scales(panel: LineChart) -> tuple[Scale, Scale]:
    """Return the scales of a line chart, chosen to hold its lines where it has none."""
    held = [part for line in panel.lines for part in (line.y, *(line.band or ()))]
    x_scale = panel.x_scale or fit_scale(line.x for line in panel.lines)
    return x_scale, panel.y_scale or fit_height(held)


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


def line_colours(lines: Sequence[Line], palette: Palette) -> list[str]:
    """Return the colour of each line."""
    return [
        palette.colour(
            number if line.colour is None else line.colour,
            len(lines) if line.shades is None else line.shades,
        )
        for number, line in enumerate(lines)
    ]


def clean(text: str) -> str:
    """Replace characters that HTML, XML or UTF-8 cannot hold."""
    return numbers.UNPRINTABLE.sub("\ufffd", text)


def thin_line(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Keep the lowest and the highest value of each stretch of a long line, and its ends."""
    if len(x) <= 2 * BUCKETS:
        return x, y
    kept = [torch.tensor([0, len(x) - 1])]
    for stretch in torch.arange(len(x)).chunk(BUCKETS):
        values = y[stretch]
        lowest = values.nan_to_num(torch.inf).argmin()
        highest = values.nan_to_num(-torch.inf).argmax()
        kept.append(stretch[0] + torch.stack([lowest, highest]))
    places = torch.cat(kept).unique()
    return x[places], y[places]


def find_ends(values: Tensor, signed: bool) -> tuple[float, float]:
    """Return the values of the first and the last colour; of signed values 0 lies in the middle."""
    seen = values[values.isfinite()].double()
    if not seen.numel():
        return 0.0, 1.0
    low, high = min(0.0, float(seen.min())), max(0.0, float(seen.max()))
    largest = max(-low, high) or 1.0
    if signed:
        return -largest, largest
    return low, high if high > low else low + 1.0


def has_negative(values: Tensor) -> bool:
    return bool((values < 0).any())


def step_between_values(values: Tensor) -> int:
    """Return n, where a heat map is drawn by every n-th row and column."""
    return -(-max(values.shape) // MAX_SIDE)


def columns_of_grid(count: int) -> int:
    """Return how many small maps stand in a row, such that rows are full if possible."""
    if count <= 4:
        return count
    return next((columns for columns in (6, 4, 5) if count % columns == 0), 4)


def encode_image(values: Tensor, ends: tuple[float, float], ramp: Sequence[str] = ()) -> str:
    """Encode values as a PNG in a data address.

    Without a ramp the picture is grey: level 0 is transparent, 1 to 255 go from the lower end to
    the upper one. A filter of the page gives these levels the colours of its theme.
    """
    from PIL import Image

    shares = (values.double() - ends[0]) / (ends[1] - ends[0])
    levels = (1 + 254 * shares.clamp(0, 1)).round().where(values.isfinite(), 0).to(torch.uint8)
    image = Image.fromarray(levels.numpy())
    if ramp:
        image = image.convert("P")
        colours = [channels(mix(ramp, max(level - 1, 0) / 254)) for level in range(256)]
        image.putpalette([channel for colour in colours for channel in colour])
    file = BytesIO()
    image.save(file, "PNG", optimize=True, transparency=0)
    return to_data_address(file.getvalue(), "png")


def to_data_address(file: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(file).decode()}"


def _image_chart(
    panel: Heatmap | HeatmapGrid,
    values: Tensor,
    ends: tuple[float, float],
    signed: bool,
    style: Style,
    *,
    axes: bool,
) -> Chart:
    """Return a picture on axes that count rows and columns, with the frame of the marked cell."""
    ramp = () if style.is_page else LIGHT.ramps["signed" if signed else "weights"]
    whole = panel.values if isinstance(panel, Heatmap) else panel.values[0]
    (rows, columns), (top, left) = whole.shape, panel.corner
    x_scale = Scale(left - 0.5, left + columns - 0.5)
    y_scale = Scale(top - 0.5, top + rows - 0.5)
    x, y = x_axis("x", panel.x, x_scale, style), y_axis("y", y_scale, style)
    y["scale"]["reverse"] = True  # the first row is on top
    for axis in (x, y):
        axis["axis"] = None
        if axes:
            axis["axis"] = alt.Axis(tickMinStep=1, domain=False, grid=False, tickCount=6)

    box = {"x": x_scale.low, "x2": x_scale.high, "y": y_scale.low, "y2": y_scale.high}
    picture = start_chart([box | {"url": encode_image(values, ends, ramp)}])
    layers = [
        picture.mark_image(aspect=False, smooth=False).encode(
            x, y, x2=alt.X2("x2"), y2=alt.Y2("y2"), url=alt.Url("url:N")
        )
    ]
    if panel.mark:
        row, column = panel.mark
        cell = {"x": column - 0.5, "x2": column + 0.5, "y": row - 0.5, "y2": row + 0.5}
        frame = start_chart([cell]).encode(x, y, x2=alt.X2("x2"), y2=alt.Y2("y2"))
        layers.append(frame.mark_rect(filled=False, stroke="#fff", strokeWidth=3))
        layers.append(frame.mark_rect(filled=False, stroke="#111", strokeWidth=1.2))
    return alt.layer(*layers)


def _colour_scale(ends: tuple[float, float], unit: str, signed: bool, style: Style) -> alt.Chart:
    """Return an invisible mark whose legend is the colour scale."""
    palette = style.palette
    colours = [palette.level("signed" if signed else "weights", level) for level in range(LEVELS)]
    scale = alt.Scale(domain=list(ends), range=colours)
    legend = alt.Legend(title=clean(unit), gradientLength=110, tickCount=3)
    chart = start_chart([{"end": end} for end in ends]).mark_point(opacity=0)
    return chart.encode(color=alt.Color("end:Q", scale=scale, legend=legend))


def _plot_sides(values: Tensor, style: Style) -> tuple[float, float]:
    """Return width and height of a heat map: cells are square unless the map is a thread."""
    width, tallest = (340.0, 300.0) if style.is_page else (style.width, style.height)
    ratio = values.shape[0] / values.shape[1]
    if not 1 / MAX_RATIO <= ratio <= MAX_RATIO:
        return width, width / 2
    return (width, width * ratio) if width * ratio <= tallest else (tallest / ratio, tallest)


def _draw_rule(panel: LineChart, x_scale: Scale, style: Style) -> list[alt.Chart]:
    """Draw the dotted line, if it lies within the chart, with its name at the top."""
    if panel.rule is None or not x_scale.low <= panel.rule[0] <= x_scale.high:
        return []
    at, name = panel.rule
    is_right = x_scale(at) > 0.5
    base = start_chart([{"x": at, "name": clean(name)}])
    x = x_axis("x", panel.x, x_scale, style)
    rule = base.mark_rule(strokeDash=[2, 3], color=style.palette.quiet).encode(x=x)
    text = base.mark_text(
        align="right" if is_right else "left",
        dx=-5 if is_right else 5,
        baseline="top",
        color=style.palette.quiet,
    )
    return [rule, text.encode(x=x, y=alt.value(2), text=alt.Text("name:N"))]


def _colour_encoding(
    names: Sequence[str], colours: Sequence[str], style: Style, *, dashed: bool
) -> dict[str, Any]:
    """Return the encoding of series by colour, and by dashes too if colours are too many."""
    keys = [str(number) for number in range(len(names))]
    legend = None
    if len(names) > 1 and style.has_legend and not style.is_page:
        legend = alt.Legend(title=None, labelExpr=label_expression(names), symbolLimit=60)
    scale = alt.Scale(domain=keys, range=list(colours))
    found: dict[str, Any] = {"color": alt.Color("series:N", scale=scale, legend=legend)}
    if dashed:
        dashes = [DASHES[number % len(DASHES)] for number in range(len(names))]
        scale = alt.Scale(domain=keys, range=dashes)
        found["strokeDash"] = alt.StrokeDash("series:N", scale=scale, legend=legend)
    return found


def _finish(
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
    return chart.properties(
        width=style.width, height=style.height, title=_paper_title(panel, style)
    )


def _paper_title(panel: Panel, style: Style) -> alt.Title:
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


def _rows(**columns: Tensor) -> list[dict[str, Any]]:
    """Return a row for each value, None in place of what is not finite."""
    finite = (
        [value if numbers.is_finite(value) else None for value in column.double().tolist()]
        for column in columns.values()
    )
    return [dict(zip(columns, row, strict=True)) for row in zip(*finite, strict=True)]


def points_of_groups(panel: Points) -> list[tuple[int, dict[str, Any]]]:
    """Return the number of its group and the coordinates of each point that can be drawn."""
    found: list[tuple[int, dict[str, Any]]] = []
    for number, (x, y) in enumerate(panel.groups.values()):
        rows = _rows(x=x, y=y)
        found += [(number, row) for row in rows if _can_be_drawn(row, panel.steep)]
    return found


def is_marked(panel: LineChart, number: int) -> bool:
    """Return True if the points of a line are marked: if they are few."""
    return not panel.connected or len(panel.lines[number].x) <= FEW_POINTS


def _can_be_drawn(row: dict[str, Any], log: bool) -> bool:
    if row["x"] is None or row["y"] is None:
        return False
    return row["y"] > 0 or not log
