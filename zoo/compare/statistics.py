"""Means over seeds with their intervals, and differences of variants that were made with the same seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from statistics import fmean, stdev

from scipy.stats import t

LEVEL = 0.95
ANY = (-inf, inf)


@dataclass(frozen=True)
class Estimate:
    """A mean of so many values, with the bounds of Student's 95 % interval of it: None where one value has no spread."""

    mean: float
    low: float | None
    high: float | None
    count: int


def estimate(values: Sequence[float], bounds: tuple[float, float] = ANY) -> Estimate:
    """The mean of one value or more. Student (1908), unknown variance. `bounds` are what no value can pass: an interval that
    ends there holds the true mean as often as one that goes on.
    """
    mean, count = fmean(values), len(values)
    if count < 2:
        return Estimate(mean, None, None, count)
    half = float(t.ppf((1 + LEVEL) / 2, count - 1)) * stdev(values) / sqrt(count)
    return Estimate(mean, max(mean - half, bounds[0]), min(mean + half, bounds[1]), count)


def difference(
    one: Mapping[int, float], other: Mapping[int, float], bounds: tuple[float, float] = ANY
) -> Estimate | None:
    """one - other, {seed: value} each within bounds, over the seeds that both have; None where there is none.

    Cells of one seed share their first weights and the order of samples: what these do to both is not in their difference.
    """
    pairs = [one[seed] - other[seed] for seed in one.keys() & other.keys()]
    reach = bounds[1] - bounds[0]
    return estimate(pairs, (-reach, reach)) if pairs else None


def apart(found: Estimate | None) -> bool:
    """Whether a difference exceeds the spread of seeds: its interval leaves 0 out."""
    if found is None or found.low is None or found.high is None:
        return False
    return found.low > 0 or found.high < 0
