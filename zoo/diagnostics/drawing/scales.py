"""Axes: from numbers to places on paper, with ticks at round numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from zoo.diagnostics.drawing import digits


@dataclass(frozen=True)
class Scale:
    """Numbers from `low` to `high` drawn from `start` to `end`; `log` by their logarithms.

    `marks` are the numbers that have ticks, round ones where there are none.
    """

    low: float
    high: float
    start: float = 0.0
    end: float = 1.0
    log: bool = False
    marks: tuple[float, ...] = ()

    def __call__(self, number: float) -> float:
        low, high, number = (self._even(one) for one in (self.low, self.high, number))
        return self.start + (number - low) / (high - low) * (self.end - self.start)

    def _even(self, number: float) -> float:
        return math.log10(number) if self.log else number

    def over(self, start: float, end: float) -> Scale:
        return replace(self, start=start, end=end)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """The marks, or about `most` round numbers, with their labels."""
        if self.marks:
            return [(number, f"{number:g}") for number in self.marks]
        if self.log:
            return self._powers(most)
        step = _step((self.high - self.low) / most)
        first, last = math.ceil(self.low / step - 1e-6), math.floor(self.high / step + 1e-6)
        return [(count * step, digits.tick(count * step, step)) for count in range(first, last + 1)]

    def _powers(self, most: int) -> list[tuple[float, str]]:
        first, last = (
            math.ceil(math.log10(self.low) - 1e-6),
            math.floor(math.log10(self.high) + 1e-6),
        )
        if last - first < 2:
            fine = [
                factor * 10.0**exponent
                for exponent in range(first - 1, last + 1)
                for factor in (1, 2, 5)
            ]
            return [
                (number, digits.value(number, 2))
                for number in fine
                if self.low <= number <= self.high
            ]
        every = -(-(last - first + 1) // (most + 1))
        return [
            (10.0**exponent, digits.power(exponent)) for exponent in range(first, last + 1, every)
        ]


def spanning(parts: Iterable[Tensor], *, log: bool = False, zero: bool = False) -> Scale:
    """A scale that holds all finite numbers (`log`: that are positive); with `zero`, 0 too."""
    every = [part.double().flatten() for part in parts]
    numbers = torch.cat(every) if every else torch.zeros(0)
    numbers = numbers[numbers.isfinite() & ((numbers > 0) | (not log))]
    if not numbers.numel():
        return Scale(0.1, 1.0, log=log)
    low, high = float(numbers.min()), float(numbers.max())
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    return _room(low, high, log)


def _room(low: float, high: float, log: bool) -> Scale:
    """A scale that is not a point."""
    if low < high:
        return Scale(low, high, log=log)
    if log:
        return Scale(low / 2, high * 2, log=True)
    return Scale(low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2)


def widened(scale: Scale, share: float = 0.04) -> Scale:
    """With a margin at both ends."""
    if scale.log:
        by = (scale.high / scale.low) ** share
        return replace(scale, low=scale.low / by, high=scale.high * by)
    by = (scale.high - scale.low) * share
    return replace(scale, low=scale.low - by, high=scale.high + by)


def calm(scale: Scale, least: float = 0.1) -> Scale:
    """Spanning a tenth of the largest number at least, so that a thousandth does not look like a cliff."""
    wanted = least * max(abs(scale.low), abs(scale.high))
    room = max(0.0, wanted - (scale.high - scale.low)) / 2
    return replace(scale, low=scale.low - room, high=scale.high + room)


def _step(rough: float) -> float:
    """The next round number: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
