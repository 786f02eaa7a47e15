"""Means over seeds with their intervals, and differences of variants, paired by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from statistics import fmean, stdev

from scipy.stats import t

LEVEL = 0.95
ANY_VALUE = (-inf, inf)


@dataclass(frozen=True)
class Estimate:
    """A mean of `count` values with Student's 95 % interval; one value has no interval."""

    mean: float
    low: float | None
    high: float | None
    count: int


def estimate_mean(values: Sequence[float], bounds: tuple[float, float] = ANY_VALUE) -> Estimate:
    """Estimate the mean of at least one value, of unknown variance (Student, 1908).

    Args:
        values: Independent values.
        bounds: The range of the values. An interval that ends there holds the true mean as often
            as one that exceeds it.
    """
    mean, count = fmean(values), len(values)
    if count < 2:
        return Estimate(mean, None, None, count)
    half = float(t.ppf((1 + LEVEL) / 2, count - 1)) * stdev(values) / sqrt(count)
    return Estimate(mean, max(mean - half, bounds[0]), min(mean + half, bounds[1]), count)


def estimate_difference(
    one: Mapping[int, float], other: Mapping[int, float], bounds: tuple[float, float] = ANY_VALUE
) -> Estimate | None:
    """Estimate the mean of one - other over the seeds that both have; None if there is none.

    Cells of a seed share their initial weights and the order of samples. What these do to both of
    them cancels in the difference.

    Args:
        one: {seed: value}
        other: {seed: value}
        bounds: The range of the values.
    """
    pairs = [one[seed] - other[seed] for seed in one.keys() & other.keys()]
    width = bounds[1] - bounds[0]
    return estimate_mean(pairs, (-width, width)) if pairs else None


def excludes_zero(found: Estimate | None) -> bool:
    """Tell whether a difference exceeds the spread of seeds: its interval leaves 0 out."""
    if found is None or found.low is None or found.high is None:
        return False
    return found.low > 0 or found.high < 0
