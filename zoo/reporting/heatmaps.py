"""Heat maps as Altair charts: images on axes of row and column numbers."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from math import isnan

import altair as alt
import torch
from torch import Tensor

from zoo.packages import explain_imports
from zoo.reporting.numbers import finite
from zoo.reporting.panel import Heatmap, HeatmapGrid, NamedHeatmap, Scale
from zoo.reporting.style import (
    LEVELS,
    LIGHT,
    Chart,
    Palette,
    Style,
    channels,
    clean,
    finish_chart,
    label_expression,
    mix,
    paper_title,
    start_chart,
    x_axis,
    y_axis,
)

MAX_SIDE = 256  # largest number of values that are drawn along a side of a heat map
MAX_RATIO = 3.0  # largest ratio of the sides of a heat map with square cells


def draw_heatmap(panel: Heatmap, style: Style) -> Chart:
    """Draw one heat map with its axes. A large one is reduced to some rows and columns."""
    ends = find_ends(panel.values, panel.signed)
    step = step_between_values(panel.values)
    width, height = _plot_sides(panel.values, style)
    chart = _image_chart(panel, panel.values[::step, ::step], ends, panel.signed, style, axes=True)
    if not style.is_page:
        chart = alt.layer(chart, _colour_scale(ends, panel.unit, panel.signed, style))
    sized = replace(style, width=width, height=height)
    return finish_chart(chart, panel, sized, fit="pad")


def draw_named_heatmap(panel: NamedHeatmap, style: Style) -> Chart:
    """Draw a heat map with names at its rows and columns, and the number in each cell."""
    palette = style.palette
    cells = [
        {"row": str(row), "column": str(column), "value": value}
        | {"text": "" if isnan(value) else f"{value:.2f}", "ink": _find_ink(value, palette)}
        for row, values in enumerate(panel.values.tolist())
        for column, value in enumerate(values)
    ]
    colours = [palette.level("weights", level) for level in range(LEVELS)]
    base = start_chart(finite(cells)).encode(
        x=alt.X("column:N", sort=None, title=clean(panel.x), axis=_name_axis(panel.columns)),
        y=alt.Y("row:N", sort=None, title=None, axis=_name_axis(panel.rows)),
    )
    scale = alt.Scale(domain=[0, 1], range=colours)
    rects = base.mark_rect().encode(color=alt.Color("value:Q", scale=scale, legend=None))
    ink = alt.Color("ink:N", scale=None, legend=None)
    texts = base.mark_text(fontSize=9).encode(text=alt.Text("text:N"), color=ink)
    # The colours of numbers are given, those of cells follow the scale.
    layered = alt.layer(rects, texts).resolve_scale(color="independent")
    return finish_chart(layered, panel, style)


def _find_ink(share: float, palette: Palette) -> str:
    """Return the colour of a number on the colour of a share, 0 to 1; that of labels for NaN."""
    if isnan(share):
        return palette.quiet
    return palette.level_ink("weights", round((LEVELS - 1) * min(max(share, 0.0), 1.0)))


def _name_axis(names: Sequence[str]) -> alt.Axis:
    labels = label_expression(names)
    return alt.Axis(labelExpr=labels, labelAngle=0, ticks=False, domain=False)


def draw_heatmap_grid(panel: HeatmapGrid, style: Style) -> Chart:
    """Draw small heat maps with labels in a grid, on one colour scale."""
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
    # The legend of the last tile is the colour scale of all.
    if not style.is_page:
        tiles[-1] = alt.layer(tiles[-1], _colour_scale(ends, panel.unit, signed, style))

    chart = alt.concat(*tiles, columns=columns, spacing=12)
    if style.is_page:
        return chart
    subtitle = f"\u2192 {panel.x}   \u2193 {panel.y}"
    return chart.properties(title=paper_title(replace(panel, y=subtitle), style))


def find_ends(values: Tensor, signed: bool) -> tuple[float, float]:
    """Return the values of the first and the last colour, symmetric around 0 if signed."""
    seen = values[values.isfinite()].double()
    if not seen.numel():
        return 0.0, 1.0
    # 0 is on every scale, so that faint colours mean values near it
    low, high = min(0.0, float(seen.min())), max(0.0, float(seen.max()))
    largest = max(-low, high) or 1.0
    if signed:
        return -largest, largest
    return low, high if high > low else low + 1.0


def has_negative(values: Tensor) -> bool:
    """Return whether any value is negative."""
    return bool((values < 0).any())


def step_between_values(values: Tensor) -> int:
    """Return n if a heat map is reduced to every n-th row and column."""
    return -(-max(values.shape) // MAX_SIDE)


def columns_of_grid(count: int) -> int:
    """Return the number of small maps in a row, chosen so that rows are full if possible."""
    if count <= 4:
        return count
    return next((columns for columns in (6, 4, 5) if count % columns == 0), 4)


def encode_image(values: Tensor, ends: tuple[float, float], ramp: Sequence[str] = ()) -> str:
    """Encode values as a PNG in a data URL.

    Without a ramp the image is grey: level 0 is transparent, and levels 1 to 255 go from the lower
    end to the upper one. A filter of the page maps these levels to the colours of its theme.
    """
    with explain_imports():
        from PIL import Image

    shares = (values.double() - ends[0]) / (ends[1] - ends[0])
    # Values that are not finite become transparent.
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
    """Encode an image file as a data URL."""
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
    """Return an image on axes of row and column numbers, with a frame around the marked cell."""
    ramp = () if style.is_page else LIGHT.ramps["signed" if signed else "weights"]
    whole = panel.values if isinstance(panel, Heatmap) else panel.values[0]
    (rows, columns), (top, left) = whole.shape, panel.corner
    x_scale = Scale(left - 0.5, left + columns - 0.5)
    y_scale = Scale(top - 0.5, top + rows - 0.5)
    x, y = x_axis("x", panel.x, x_scale, style), y_axis("y", y_scale, style)
    # The first row is on top.
    y["scale"]["reverse"] = True
    for axis in (x, y):
        axis["axis"] = None
        if axes:
            axis["axis"] = alt.Axis(
                tickMinStep=1, domain=False, grid=False, tickCount=6, labelFlush=False
            )

    # The heat map is one image, which is much smaller than a mark per cell.
    box = {"x": x_scale.low, "x2": x_scale.high, "y": y_scale.low, "y2": y_scale.high}
    picture = start_chart([box | {"url": encode_image(values, ends, ramp)}])
    layers = [
        picture.mark_image(aspect=False, smooth=False).encode(
            x, y, x2=alt.X2("x2"), y2=alt.Y2("y2"), url=alt.Url("url:N")
        )
    ]
    # A white frame below a dark one is visible on all colours.
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
    """Return width and height of a heat map. Cells are square unless the map is very narrow."""
    width, tallest = (340.0, 300.0) if style.is_page else (style.width, style.height)
    ratio = values.shape[0] / values.shape[1]
    if not 1 / MAX_RATIO <= ratio <= MAX_RATIO:
        return width, width / 2
    return (width, width * ratio) if width * ratio <= tallest else (tallest / ratio, tallest)
