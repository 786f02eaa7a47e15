"""Values over two axes as pictures in grey, which a filter of the page colours for light and for dark paper."""

from __future__ import annotations

from io import BytesIO

import torch
from torch import Tensor

from zoo.diagnostics.drawing import digits
from zoo.diagnostics.drawing.axes import LETTER, WIDTH, stacked
from zoo.diagnostics.drawing.markup import Markup, tag
from zoo.diagnostics.drawing.pictures import address
from zoo.diagnostics.drawing.scales import Scale
from zoo.reporting.spec import Map, Mosaic

MOST = 300.0  # the height of a map
SIDE = 256  # values along a side that are drawn
ODD = 3.0  # sides that differ by more are drawn alike


def bounds(values: Tensor, signed: bool) -> tuple[float, float]:
    """What the first and the last colour stand for; of signed values 0 lies in the middle."""
    seen = values[values.isfinite()].double()
    if not seen.numel():
        return 0.0, 1.0
    low, high = min(0.0, float(seen.min())), max(0.0, float(seen.max()))
    most = max(-low, high) or 1.0
    return (-most, most) if signed else (low, high if high > low else low + 1.0)


def picture(values: Tensor, ends: tuple[float, float]) -> str:
    """A PNG as an address: level 0 is hidden, 1 to 255 go from the lower end to the upper."""
    from PIL import Image

    shares = (values.double() - ends[0]) / (ends[1] - ends[0])
    levels = (1 + 254 * shares.clamp(0, 1)).round().where(values.isfinite(), 0).to(torch.uint8)
    file = BytesIO()
    Image.fromarray(levels.numpy()).save(file, "PNG", optimize=True, transparency=0)
    return address(file.getvalue(), "png")


def scale(ends: tuple[float, float], unit: str, ramp: str) -> Markup:
    """What the colours stand for."""
    low, high = (tag("span", digits.value(end, 3)) for end in ends)
    return tag(
        "p",
        low,
        tag("i", class_=f"ramp {ramp}"),
        high,
        tag("span", unit, class_="unit"),
        class_="scale",
    )


def ramp(signed: bool) -> str:
    return "signed" if signed else "weights"


def whole(panel: Map) -> Markup:
    """One map with its axes."""
    ends, look = bounds(panel.values, panel.signed), ramp(panel.signed)
    every = -(-max(panel.values.shape) // SIDE)
    data = picture(panel.values[::every, ::every], ends)
    unit = panel.unit if every == 1 else f"{panel.unit}; one of {every} rows and columns is drawn"
    return stacked(_axes(panel, data, every, ends, look), scale(ends, unit, look))


def mosaic(panel: Mosaic) -> Markup:
    """Small maps with a label each, on one scale; the axes are named once."""
    signed = bool((panel.values < 0).any())
    ends, look = bounds(panel.values, signed), ramp(signed)
    tiles = (
        tag("div", tag("span", label), _tile(panel, values, ends, look), class_="tile")
        for values, label in zip(panel.values, panel.labels, strict=True)
    )
    named = tag(
        "p", tag("span", f"\u2192 {panel.x}"), tag("span", f"\u2193 {panel.y}"), class_="names"
    )
    return stacked(
        tag("div", *tiles, class_=f"tiles in{_abreast(len(panel.labels))}"),
        named,
        scale(ends, panel.unit, look),
    )


def _abreast(count: int) -> int:
    """How many tiles stand in a row: such that the rows are full, where that can be."""
    return (
        count if count <= 4 else next((abreast for abreast in (6, 4, 5) if count % abreast == 0), 4)
    )


def _tile(panel: Mosaic, values: Tensor, ends: tuple[float, float], look: str) -> Markup:
    rows, columns = values.shape
    high = 100.0 * (rows / columns if 1 / ODD <= rows / columns <= ODD else 1.0)
    x, y = (
        _scale(panel.corner[1], columns).over(0, 100),
        _scale(panel.corner[0], rows).over(0, high),
    )
    drawn = _image(picture(values, ends), (x, y), ends, look)
    return tag("svg", drawn, _mark(panel.mark, x, y), viewBox=f"0 0 100 {high:g}", class_="map")


def _axes(panel: Map, data: str, every: int, ends: tuple[float, float], look: str) -> Markup:
    rows, columns = panel.values.shape
    x, y = _scale(panel.corner[1], columns), _scale(panel.corner[0], rows)
    left = 14 + LETTER * max(len(label) for _, label in _whole(y, 6))
    width, height = _sides(rows, columns, WIDTH - left - 14)
    x, y = x.over(left, left + width), y.over(24, 24 + height)
    texts = [
        tag("text", label, x=left - 7, y=y(number) + 3.6, class_="tick end")
        for number, label in _whole(y, 6)
    ]
    texts += [
        tag("text", label, x=x(n), y=y.end + 16, class_="tick middle") for n, label in _whole(x, 6)
    ]
    names = [
        tag("text", panel.y, x=2, y=12, class_="name"),
        tag("text", panel.x, x=left + width / 2, y=y.end + 35, class_="name middle"),
    ]
    drawn = (_image(data, (x, y), ends, look, every), _mark(panel.mark, x, y), *texts, *names)
    return tag(
        "svg",
        *drawn,
        role="img",
        aria_label=panel.title,
        class_="map",
        viewBox=f"0 0 {WIDTH:g} {height + 66:g}",
    )


def _image(
    data: str, axes: tuple[Scale, Scale], ends: tuple[float, float], look: str, every: int = 1
) -> Markup:
    x, y = axes
    return tag(
        "image",
        href=data,
        x=x.start,
        y=y.start,
        width=x.end - x.start,
        height=y.end - y.start,
        preserveAspectRatio="none",
        class_=look,
        data_ends=f"{ends[0]:.6g} {ends[1]:.6g}",
        data_corner=f"{y.low + 0.5:g} {x.low + 0.5:g} {every}",
    )


def _mark(mark: tuple[int, int] | None, x: Scale, y: Scale) -> Markup | None:
    """A frame around one value, seen on light and on dark."""
    if mark is None:
        return None
    left, top = x(mark[1] - 0.5), y(mark[0] - 0.5)
    sides = {
        "x": left,
        "y": top,
        "width": x(mark[1] + 0.5) - left,
        "height": y(mark[0] + 0.5) - top,
    }
    return tag("g", tag("rect", **sides, class_="halo"), tag("rect", **sides, class_="mark"))


def _scale(first: int, count: int) -> Scale:
    """Each value has its number in its middle."""
    return Scale(first - 0.5, first + count - 0.5)


def _whole(axis: Scale, most: int) -> list[tuple[float, str]]:
    """Ticks at whole numbers alone."""
    return [(number, label) for number, label in axis.ticks(most) if number == round(number)]


def _sides(rows: int, columns: int, width: float) -> tuple[float, float]:
    """Values are square unless the map would be a thread."""
    share = rows / columns
    if not 1 / ODD <= share <= ODD:
        return width, width / 2
    return (width, width * share) if width * share <= MOST else (MOST / share, MOST)
