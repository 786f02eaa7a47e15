"""Panels: what a chart shows, as plain data that a page, a PNG file or a logger can draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.reporting.scale import Scale


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One chart: its title, the names of its axes with their units, and a sentence for readers.

    Args:
        title: Heading of the chart.
        x: Name of the horizontal axis, with its unit.
        y: Name of the vertical axis, with its unit.
        caption: One sentence that tells a reader what to look for.
    """

    title: str
    x: str
    y: str
    caption: str = ""

    @property
    def full_caption(self) -> str:
        """The sentence under the chart: the caption, or the names of the axes."""
        return self.caption or f"{self.y[:1].upper()}{self.y[1:]} over {self.x}."


@dataclass(frozen=True, kw_only=True)
class Bars(Panel):
    """A bar for each named value, for example each head. `x` names the groups, `y` the value."""

    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Curves(Panel):
    """Lines over shared x values: one for each head, or one for all.

    Args:
        x_values: x values [N].
        lines: y values [N] by label.
        band: Lower and upper bound [N] of a band around the first line.
    """

    x_values: Tensor
    lines: Mapping[str, Tensor]
    band: tuple[Tensor, Tensor] | None = None

    def to_line_chart(self) -> LineChart:
        lines = [Line(label, self.x_values, line) for label, line in self.lines.items()]
        if self.band:
            lines[0] = Line(lines[0].label, lines[0].x, lines[0].y, self.band)
        return LineChart(
            title=self.title, x=self.x, y=self.y, caption=self.caption, lines=tuple(lines)
        )


@dataclass(frozen=True)
class Line:
    """A line of a chart, with x values of its own.

    Args:
        label: Name in the legend.
        x: x values [N].
        y: y values [N], NaN where the line is broken.
        band: Lower and upper bound [N] of a band around the line.
        colour: Index of its colour, by default its position among the lines.
        shades: Number of lines that share the palette, by default all lines of the chart.
    """

    label: str
    x: Tensor
    y: Tensor
    band: tuple[Tensor, Tensor] | None = None
    colour: int | None = None
    shades: int | None = None


@dataclass(frozen=True, kw_only=True)
class LineChart(Panel):
    """Lines with explicit scales.

    Args:
        lines: The lines, drawn in their order.
        x_scale: Horizontal scale, by default as wide as the lines.
        y_scale: Vertical scale, by default chosen to hold the lines and their bands.
        rule: x value and label of a dotted vertical line.
        connected: False draws the points of a line without joining them.
        shows_values: True writes the value beside each point.
    """

    lines: tuple[Line, ...]
    x_scale: Scale | None = None
    y_scale: Scale | None = None
    rule: tuple[float, str] | None = None
    connected: bool = True
    shows_values: bool = False


@dataclass(frozen=True, kw_only=True)
class Heatmap(Panel):
    """Values over two axes.

    Args:
        values: Values [rows, columns], NaN where there is none.
        unit: Name of the values.
        signed: True puts 0 in the middle of the colour scale.
        mark: Row and column of a cell that is framed.
        corner: Row and column number of the first value. For a map over offsets it is negative:
            (-7, -7) for offsets on a grid of 8 by 8.
    """

    values: Tensor
    unit: str
    signed: bool
    mark: tuple[int, int] | None = None
    corner: tuple[int, int] = (0, 0)


@dataclass(frozen=True, kw_only=True)
class HeatmapGrid(Panel):
    """Small heat maps side by side on one colour scale.

    Args:
        values: Values [maps, rows, columns], NaN where there is none.
        labels: A label for each map.
        unit: Name of the values.
        mark: Row and column of a cell that is framed in each map.
        corner: Row and column number of the first value of each map.
    """

    values: Tensor
    labels: tuple[str, ...]
    unit: str
    mark: tuple[int, int] | None = None
    corner: tuple[int, int] = (0, 0)


@dataclass(frozen=True, kw_only=True)
class Points(Panel):
    """A scatter plot.

    Args:
        groups: x and y values by label.
        steep: True draws the y axis logarithmically.
        square: True scales both axes alike around 0.
        note: A remark in a corner.
    """

    groups: Mapping[str, tuple[Tensor, Tensor]]
    steep: bool = False
    square: bool = False
    note: str = ""


def same(first: Tensor, second: Tensor) -> bool:
    """Return True for tensors that are equal up to rounding and NaN in the same elements."""
    return torch.allclose(first, second.expand_as(first), atol=1e-6, rtol=1e-6, equal_nan=True)


def distinct(values: Tensor) -> Tensor:
    """Keep all heads [H, ...] if they differ, else only the first, which stands for all."""
    return values[:1] if same(values, values[:1]) else values


def label_heads(values: Tensor, kind: str = "head") -> dict[str, Tensor]:
    """Label heads [H, ...]: "head 1", "head 2", ... or "all heads" if there is one."""
    if len(values) == 1:
        return {"all heads": values[0]}
    return {f"{kind} {number}": value for number, value in enumerate(values, start=1)}
