"""Panels: what a chart shows and the scales of its axes, as plain data that anything can draw."""

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
        log: True spaces numbers by their logarithm.
        ticks: Numbers with a tick, by default round ones.
        labels: Labels of ticks that are not their number.
    """

    low: float
    high: float
    log: bool = False
    ticks: tuple[float, ...] = ()
    labels: Mapping[float, str] = field(default_factory=dict)

    def __call__(self, number: float) -> float:
        """Return the share of the axis from its start to a number, 0 to 1."""
        if self.log:
            return math.log(number / self.low) / math.log(self.high / self.low)
        return (number - self.low) / (self.high - self.low)

    def widen(self, share: float = 0.04) -> Scale:
        """Add a margin at both ends, a share of the range."""
        if self.log:
            factor = (self.high / self.low) ** share
            return replace(self, low=self.low / factor, high=self.high * factor)
        margin = (self.high - self.low) * share
        return replace(self, low=self.low - margin, high=self.high + margin)

    def cover(self) -> Scale:
        """Cover at least a tenth of the largest number: a change of 0.1 % must not look steep."""
        wanted = 0.1 * max(abs(self.low), abs(self.high))
        margin = max(0.0, wanted - (self.high - self.low)) / 2
        return replace(self, low=self.low - margin, high=self.high + margin)

    def round_numbers(self, count: int) -> list[tuple[float, str]]:
        """Return about `count` round numbers in the range, each with its label."""
        rough = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(rough))
        step = power * next(one for one in (1, 2, 5, 10) if one * power >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-6)
        last = math.floor(self.high / step + 1e-6)
        return [(number * step, _label(number * step, step)) for number in range(first, last + 1)]

    def powers(self, count: int) -> tuple[float, ...]:
        """Return about `count` numbers evenly apart by their logarithm.

        Powers of ten, or 1, 2, 5.
        """
        first = math.ceil(math.log10(self.low) - 1e-6)
        last = math.floor(math.log10(self.high) + 1e-6)
        if last - first >= 2:
            every = -(-(last - first + 1) // (count + 1))
            return tuple(10.0**exponent for exponent in range(first, last + 1, every))
        fine = [
            base * 10.0**exponent for exponent in (first - 1, first, last) for base in (1, 2, 5)
        ]
        return tuple(sorted({number for number in fine if self.low <= number <= self.high}))


def fit_scale(parts: Iterable[Tensor], *, log: bool = False) -> Scale:
    """Return a scale that holds all finite numbers (if `log`, all positive ones) of tensors."""
    flat = [part.double().flatten() for part in parts]
    numbers = torch.cat(flat) if flat else torch.zeros(0)
    numbers = numbers[numbers.isfinite() & ((numbers > 0) | (not log))]
    if not numbers.numel():
        return Scale(0.1, 1.0, log=log)

    low, high = float(numbers.min()), float(numbers.max())
    if low < high:
        return Scale(low, high, log=log)
    if log:
        return Scale(low / 2, high * 2, log=True)
    return Scale(low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2)


def fit_height(parts: Iterable[Tensor]) -> Scale:
    """Return a vertical scale for lines and bands; it starts at 0 if they come near to 0."""
    scale = fit_scale(parts).widen().cover()
    return replace(scale, low=0.0) if 0 <= scale.low < 0.4 * scale.high else scale


def _label(number: float, step: float) -> str:
    if number == 0:
        return "0"
    if abs(number) >= 1e7 or step < 1e-4:
        return f"{number:.1e}".replace("-", "\u2212")
    if step >= 1000 or abs(number) >= 10_000:
        return f"{number / 1000:g}k".replace("-", "\u2212")
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{number:.{decimals}f}".replace("-", "\u2212")


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
