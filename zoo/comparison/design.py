"""Settings of studies: each has its own offset of one joint design over all tuned keys.

A study tunes every variant anew and tests the setting that was best on validation data. Its
settings are those of no other study, so the chance of tuning is in the differences between studies,
as that of seeds is. Tuning once and repeating the chosen setting over seeds leaves it out: which
variant the one design happens to suit is then taken for a difference of variants: in 8 to 72 % of
comparisons of equal variants, where studies raise 4 to 6 % (docs/records/error_rates.json).

The design is a Halton sequence (Halton 1960), one dimension for each key, choices included, moved
by the offset of the study modulo 1 (Cranley and Patterson 1976). All variants of a study have the
same points before keys without effect are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

DIGITS = 4
"""Significant digits of a setting, so that recipes stay legible."""
EDGE = 0.125
"""Share of a range at either end that counts as its edge."""

Value = Any
"""Plain data."""
Settings = Mapping[str, Value]
"""{key: value}"""


@dataclass(frozen=True)
class Range:
    """Values of a key from low to high, by the logarithm or evenly."""

    key: str
    low: float
    high: float
    scale: Literal["log", "linear"] = "log"

    def place(self, share: float) -> float:
        """Return the value at a share of the range, 0 at its low end."""
        if self.scale == "log":
            value = self.low * (self.high / self.low) ** share
        else:
            value = self.low + share * (self.high - self.low)
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)

    def list_extremes(self) -> tuple[float, ...]:
        """Return both ends."""
        return self.low, self.high

    def locate(self, value: float) -> float:
        """Return the share of the range at which a value lies."""
        if self.scale == "log":
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class ChoiceAxis:
    """Values of a key without an order."""

    key: str
    values: tuple[Value, ...]

    def list_extremes(self) -> tuple[Value, ...]:
        """Return all choices, none of which is between others."""
        return self.values

    def place(self, share: float) -> Value:
        """Return the value at a share: each value has as large a part of [0, 1) as the others."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]


Axis = Range | ChoiceAxis
HasEffect = Callable[[str, str], bool]
"""(key, variant): whether the key changes what the variant computes."""


@dataclass(frozen=True)
class EdgeSetting:
    """A chosen value near an end of its range, beyond which a better one may lie."""

    key: str
    value: float
    side: Literal["lower", "upper"]
    studies: tuple[int, ...]
    """The studies that chose a value there."""


def list_settings(axes: Sequence[Axis], study: int, budget: int, seed: int) -> list[Settings]:
    """Return the settings of a study, the same for all variants.

    More of them begin with fewer of them, and a study does not depend on how many there are.

    Args:
        axes: The tuned keys.
        study: The number of the study, from 0.
        budget: How many settings.
        seed: Of the comparison.
    """
    # scipy.stats takes long to import, and a comparison without tuning needs none of it
    from scipy.stats import qmc

    if not axes:
        return [{} for _ in range(budget)]
    points = qmc.Halton(len(axes), scramble=False).random(budget)  # [budget, axes]
    offset = np.random.default_rng([seed, study]).random(len(axes))
    shares = (points + offset) % 1.0
    return [
        {axis.key: axis.place(float(share)) for axis, share in zip(axes, row, strict=True)}
        for row in shares
    ]


def drop_without_effect(axes: Sequence[Axis], variant: str, has_effect: HasEffect) -> list[Axis]:
    """Return the axes whose keys change what a variant computes.

    Args:
        axes: The tuned keys.
        variant: The name of the variant.
        has_effect: Called with a key and the variant.
    """
    return [axis for axis in axes if has_effect(axis.key, variant)]


def list_own_settings(
    axes: Sequence[Axis], variant: str, has_effect: HasEffect, study: int, budget: int, seed: int
) -> list[Settings]:
    """Return the settings of a variant in a study: those of all, without keys of no effect.

    A variant without any tuned key is trained once. Settings that became equal stay in the list
    once, since the same training would only be repeated.

    Args:
        axes: The tuned keys.
        variant: The name of the variant.
        has_effect: Called with a key and the variant.
        study: The number of the study, from 0.
        budget: How many settings, before equal ones are dropped.
        seed: Of the comparison.
    """
    effective_keys = {axis.key for axis in drop_without_effect(axes, variant, has_effect)}
    distinct: list[Settings] = []
    for settings in list_settings(axes, study, budget, seed):
        reduced = {key: value for key, value in settings.items() if key in effective_keys}
        if reduced not in distinct:
            distinct.append(reduced)
    return distinct


def choose_best(values: Sequence[float | None], better: Literal["high", "low"]) -> int | None:
    """Return the number of the best trial of a study, of equal ones the first.

    Args:
        values: The validation value of each trial; None or nan if it became non-finite.
        better: Whether high or low values are better.

    Returns:
        None if no trial has a finite value.
    """
    sign = 1 if better == "high" else -1
    finite = {
        number: sign * value
        for number, value in enumerate(values)
        if value is not None and math.isfinite(value)
    }
    return max(finite, key=lambda number: finite[number], default=None)


def find_edges(axes: Sequence[Axis], chosen: Mapping[int, Settings]) -> list[EdgeSetting]:
    """Name the ranges at whose ends most studies chose their setting.

    The offsets of studies differ, so a single study's choice near an end is chance. A range is
    named if its edge holds more than half of all choices, of two studies at least.

    Args:
        axes: The tuned keys.
        chosen: {study: the settings that it chose for one variant}
    """
    edges = []
    for axis in axes:
        if isinstance(axis, ChoiceAxis):
            continue
        numbers = {
            study: float(value)
            for study, settings in chosen.items()
            if isinstance(value := settings.get(axis.key), int | float)
        }
        shares = {study: axis.locate(value) for study, value in numbers.items()}
        sides: dict[Literal["lower", "upper"], list[int]] = {
            "lower": [study for study, share in shares.items() if share <= EDGE],
            "upper": [study for study, share in shares.items() if share >= 1 - EDGE],
        }
        for side, studies in sides.items():
            if len(studies) >= 2 and 2 * len(studies) > len(shares):
                pick = min if side == "lower" else max
                extreme = pick(numbers[study] for study in studies)
                edges.append(EdgeSetting(axis.key, extreme, side, tuple(sorted(studies))))
    return edges
