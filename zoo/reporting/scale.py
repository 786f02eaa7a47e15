"""Ranges of chart axes, and round numbers to put ticks at."""

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

    def cover(self, least: float = 0.1) -> Scale:
        """Cover at least a share of the largest number: a change of 0.1 % must not look steep."""
        wanted = least * max(abs(self.low), abs(self.high))
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
