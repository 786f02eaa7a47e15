"""Panels: the contents of charts and the scales of their axes, as plain data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Scale:
    """The range of an axis.

    Args:
        low: Number at the start of the axis.
        high: Number at the end of the axis.
        log: Whether the axis is logarithmic.
        ticks: Numbers with a tick; round numbers by default.
        labels: Labels of ticks, if they are not the number.
    """

    low: float
    high: float
    log: bool = False
    ticks: tuple[float, ...] = ()
    labels: Mapping[float, str] = field(default_factory=dict)

    def __call__(self, number: float) -> float:
        """Return the position of a number on the axis, from 0 to 1."""
        if self.log:
            return math.log(number / self.low) / math.log(self.high / self.low)
        return (number - self.low) / (self.high - self.low)

    def widen(self, share: float = 0.04) -> Scale:
        """Add a margin at both ends, as a fraction of the range."""
        if self.log:
            factor = (self.high / self.low) ** share
            return replace(self, low=self.low / factor, high=self.high * factor)
        margin = (self.high - self.low) * share
        return replace(self, low=self.low - margin, high=self.high + margin)

    def cover(self) -> Scale:
        """Widen the range to at least a tenth of the largest number."""
        # Otherwise a change of 0.1 % would look steep.
        wanted = 0.1 * max(abs(self.low), abs(self.high))
        margin = max(0.0, wanted - (self.high - self.low)) / 2
        return replace(self, low=self.low - margin, high=self.high + margin)

    def round_numbers(self, count: int) -> list[tuple[float, str]]:
        """Return about `count` round numbers in the range, each with its label."""
        # The next step of 1, 2, 5 or 10 times a power of ten.
        rough = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(rough))
        # 0.999 here and 1e-6 below: rounding must not skip a number
        step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
        start = math.ceil(self.low / step - 1e-6)
        end = math.floor(self.high / step + 1e-6)
        return [(number * step, _label(number * step, step)) for number in range(start, end + 1)]

    def powers(self, count: int) -> tuple[float, ...]:
        """Return about `count` numbers with equal distances of their logarithms.

        They are powers of ten or, in a small range, 1, 2 and 5 times these.
        """
        # Over at least two decades powers of ten are enough.
        lowest = math.ceil(math.log10(self.low) - 1e-6)
        highest = math.floor(math.log10(self.high) + 1e-6)
        if highest - lowest >= 2:
            step = -(-(highest - lowest + 1) // (count + 1))
            return tuple(10.0**exponent for exponent in range(lowest, highest + 1, step))
        fine = [
            base * 10.0**exponent
            for exponent in (lowest - 1, lowest, highest)
            for base in (1, 2, 5)
        ]
        return tuple(sorted({number for number in fine if self.low <= number <= self.high}))


def fit_scale(parts: Iterable[Tensor], *, log: bool = False) -> Scale:
    """Return a scale with all finite numbers (if `log`, all positive ones) of tensors."""
    flat = [part.double().flatten() for part in parts]
    numbers = torch.cat(flat) if flat else torch.zeros(0)
    numbers = numbers[numbers.isfinite() & ((numbers > 0) | (not log))]
    if not numbers.numel():
        return Scale(0.1, 1.0, log=log)

    # A single number is in the middle of a scale around it.
    low, high = float(numbers.min()), float(numbers.max())
    if low < high:
        return Scale(low, high, log=log)
    if log:
        return Scale(low / 2, high * 2, log=True)
    return Scale(low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2)


def fit_height(parts: Iterable[Tensor]) -> Scale:
    """Return a vertical scale for lines and bands, which starts at 0 if they are near 0."""
    scale = fit_scale(parts).widen().cover()
    return replace(scale, low=0.0) if 0 <= scale.low < 0.4 * scale.high else scale


def _label(number: float, step: float) -> str:
    if number == 0:
        return "0"
    if abs(number) >= 1e7 or step < 1e-4:
        return f"{number:.1e}".replace("-", "\u2212")
    if step >= 1000 or abs(number) >= 10_000:
        return f"{number / 1000:g}k".replace("-", "\u2212")
    # As many decimals as the step between labels needs.
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{number:.{decimals}f}".replace("-", "\u2212")


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One chart: its title, the names of its axes with units, and its caption.

    Args:
        title: Heading of the chart.
        x: Name of the horizontal axis, with its unit.
        y: Name of the vertical axis, with its unit.
        caption: One sentence on how to read the chart.
    """

    title: str
    x: str
    y: str
    caption: str = ""

    @property
    def full_caption(self) -> str:
        """The caption, or a sentence with the names of the axes."""
        return self.caption or f"{self.y[:1].upper()}{self.y[1:]} over {self.x}."


@dataclass(frozen=True, kw_only=True)
class Bars(Panel):
    """A bar chart of named values, for example of heads. `x` names the groups, `y` the value."""

    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Curves(Panel):
    """Lines over shared x values: one for each head, or one for all heads.

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
    """A line of a chart with its own x values.

    Args:
        label: Name in the legend.
        x: x values [N].
        y: y values [N]; NaN where the line is broken.
        band: Lower and upper bound [N] of a band around the line.
        colour: Index of its colour; its position among the lines by default.
        shades: Number of lines that share the palette; that of all lines by default.
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
        lines: The lines in the order of drawing.
        x_scale: Horizontal scale; fitted to the lines by default.
        y_scale: Vertical scale; fitted to the lines and their bands by default.
        rule: x value and label of a dotted vertical line.
        connected: Whether the points of a line are connected.
        shows_values: Whether the value is written at each point.
    """

    lines: tuple[Line, ...]
    x_scale: Scale | None = None
    y_scale: Scale | None = None
    rule: tuple[float, str] | None = None
    connected: bool = True
    shows_values: bool = False


@dataclass(frozen=True, kw_only=True)
class Heatmap(Panel):
    """A heat map of values over two axes.

    Args:
        values: Values [rows, columns]; NaN for missing ones.
        unit: Name of the values.
        signed: Whether 0 is in the middle of the colour scale.
        mark: Row and column of a cell with a frame.
        corner: Row and column number of the first value. It is negative for a map of offsets:
            (-7, -7) for offsets on a grid of 8 by 8.
    """

    values: Tensor
    unit: str
    signed: bool
    mark: tuple[int, int] | None = None
    corner: tuple[int, int] = (0, 0)


@dataclass(frozen=True, kw_only=True)
class NamedHeatmap(Panel):
    """A heat map of a few shares from 0 to 1 with their numbers, and names of rows and columns.

    Args:
        values: Values [rows, columns]; NaN for missing ones.
        rows: Names of the rows, from the top.
        columns: Names of the columns.
    """

    values: Tensor
    rows: tuple[str, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class HeatmapGrid(Panel):
    """Small heat maps on one colour scale.

    Args:
        values: Values [maps, rows, columns]; NaN for missing ones.
        labels: A label for each map.
        unit: Name of the values.
        mark: Row and column of a cell with a frame in each map.
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
        steep: Whether the y axis is logarithmic.
        square: Whether both axes have the same scale around 0.
        note: A remark next to the name of the y axis.
        x_scale: Horizontal scale; fitted to the points by default.
        y_scale: Vertical scale; fitted to the points by default.
    """

    groups: Mapping[str, tuple[Tensor, Tensor]]
    steep: bool = False
    square: bool = False
    note: str = ""
    x_scale: Scale | None = None
    y_scale: Scale | None = None


def same(first: Tensor, second: Tensor) -> bool:
    """Return whether tensors are equal up to rounding, with NaN in the same elements."""
    return torch.allclose(first, second.expand_as(first), atol=1e-6, rtol=1e-6, equal_nan=True)


def distinct(values: Tensor) -> Tensor:
    """Return all heads [H, ...] if they differ, otherwise only the first one."""
    return values[:1] if same(values, values[:1]) else values


def name_head(index: int, kind: str = "head") -> str:
    """Return the name of a head on pages and pictures, which count heads from 1."""
    return f"{kind} {index + 1}"


def label_heads(values: Tensor, kind: str = "head") -> dict[str, Tensor]:
    """Label heads [H, ...] as "head 1", "head 2", ...; a single one is "all heads"."""
    if len(values) == 1:
        return {"all heads": values[0]}
    return {name_head(index, kind): value for index, value in enumerate(values)}
