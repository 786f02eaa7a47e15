"""Intervals over seeds, and comparisons of variants that are corrected for their number.

Cells of one seed share initial weights and the order of samples, so a comparison is a block design:
value = variant + seed + noise, one value for each variant and seed. `compare_all` fits that layout.

Noise is pooled over all variants after the effects of seeds are removed, which gives
(V - 1)(S - 1) degrees of freedom in place of the S - 1 of one pair: three seeds of 20 variants have
38, not 2. Pooling assumes that variants have one variance. The degrees of freedom are therefore
reduced by Satterthwaite's rule as far as the variances differ, and where they obviously differ
(Cochran's test at 1 %, or a variant that is alike in all seeds, as at a ceiling) nothing
is pooled: each pair is judged by its own paired differences, with Holm's correction over all pairs.

Differences are to the variant with the best mean. It is chosen by the data, so Dunnett's intervals,
which are for a control that was named beforehand, would be too narrow, and so are Hsu's one-sided
constants where they are read as "worse": of 20 equal variants they exclude some nearly every time.
The intervals are those of all pairs (Tukey 1953, Kramer 1956), which imply multiple comparisons
with the best (Hsu 1996, section 4.2): with probability 95 % no variant is called worse that is not,
and the best one is among those that may be best. Comparisons that were named before the run
(`compare_named`) need no correction for that choice, only for their number: Holm's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import floor, inf, isfinite, sqrt
from statistics import fmean, median, stdev

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats
from scipy.optimize import brentq

LEVEL = 0.95
POWER = 0.8
ANY_VALUE = (-inf, inf)
# significance of Cochran's test: a wrong alarm costs power
UNEQUAL = 0.01
# shares of the largest value that are rounding
ROUNDING = 1e-12
# of the quadrature of the studentized range
NODES = 96

Values = Mapping[str, Mapping[int, float]]
"""{variant: {seed: value}}"""


@dataclass(frozen=True)
class Estimate:
    """A mean of `count` values with a 95 % interval; one value has no interval."""

    mean: float
    low: float | None
    high: float | None
    count: int


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What is known of the noise of a comparison under one condition."""

    variants: int
    """How many variants have two values or more."""
    seeds: int
    """Seeds of the variant that has most."""
    deviation: float
    """Standard deviation of a value without the effect of its seed."""
    freedom: int
    """Degrees of freedom of the deviation; 0 if nothing can be estimated."""
    warning: str = ""
    """Why variances are not pooled; empty if they are."""

    @property
    def is_pooled(self) -> bool:
        """Whether all variants are taken to have one variance."""
        return not self.warning


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference of two variants over the seeds of both."""

    estimate: Estimate
    """With a simultaneous interval."""
    p_value: float | None
    """Corrected for all comparisons of its family; None if there is no interval."""


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
    half = float(stats.t.ppf((1 + LEVEL) / 2, count - 1)) * stdev(values) / sqrt(count)
    return Estimate(mean, max(mean - half, bounds[0]), min(mean + half, bounds[1]), count)


def measure_noise(values: Values) -> Noise:
    """Estimate the noise of a layout of variants and seeds, some of whose values may be missing.

    Args:
        values: Finite values; variants with one value are left out.
    """
    own = {name: found for name, found in values.items() if len(found) > 1}
    seeds = max((len(found) for found in own.values()), default=0)
    if len(own) < 2:
        return Noise(variants=len(own), seeds=seeds, deviation=0.0, freedom=0)

    squares, freedom = _fit_layout(own)
    total, ratio = float(squares.sum()), 1.0
    if total > 0:
        ratio = total**2 / (len(own) * float((squares**2).sum()))
    return Noise(
        variants=len(own),
        seeds=seeds,
        deviation=sqrt(total / freedom) if freedom > 0 else 0.0,
        # whole numbers, so that quantiles are found once
        freedom=max(1, floor(freedom * ratio + ROUNDING)) if freedom > 0 else 0,
        warning=_find_unequal(own, squares),
    )


def compare_all(
    values: Values, first: str, noise: Noise, bounds: tuple[float, float] = ANY_VALUE
) -> dict[str, Difference]:
    """Compare all variants with one that the data chose, as the best mean.

    The family is that of all pairs: see the text of this module.

    Args:
        values: Finite values of each variant.
        first: The variant that others are compared with.
        noise: What `measure_noise` found for the same values.
        bounds: The range of the values.

    Returns:
        {variant: its difference to the first}, of variants that share a seed with it.
    """
    found = {name: _pair(own, values[first]) for name, own in values.items() if name != first}
    paired = {name: pairs for name, pairs in found.items() if pairs}
    if noise.is_pooled:
        return {name: _judge_pooled(pairs, noise, bounds) for name, pairs in paired.items()}

    every = {one: _pair(values[one[0]], values[one[1]]) for one in combinations(values, 2)}
    judged = _judge_by_holm({one: pairs for one, pairs in every.items() if pairs}, None, bounds)
    chosen = {}
    for name in paired:
        forward = judged.get((name, first))
        chosen[name] = forward or _reverse(judged[first, name])
    return chosen


def compare_named(
    values: Values,
    pairs: Sequence[tuple[str, str]],
    noise: Noise,
    bounds: tuple[float, float] = ANY_VALUE,
    *,
    family: int | None = None,
) -> dict[tuple[str, str], Difference]:
    """Compare pairs of variants that were named before the run, with Holm's correction.

    Args:
        values: Finite values of each variant.
        pairs: (one, other): the difference is one - other.
        noise: What `measure_noise` found for the same values.
        bounds: The range of the values.
        family: How many comparisons are corrected for; as many as there are pairs by default.

    Returns:
        {pair: difference}, of pairs that share a seed.
    """
    found = {pair: _pair(values.get(pair[0], {}), values.get(pair[1], {})) for pair in pairs}
    kept = {pair: own for pair, own in found.items() if own}
    return _judge_by_holm(kept, noise if noise.is_pooled else None, bounds, family)


def excludes_zero(found: Estimate | None) -> bool:
    """Tell whether an interval leaves 0 out."""
    if found is None or found.low is None or found.high is None:
        return False
    return found.low > 0 or found.high < 0


def adjust_by_holm(p_values: Sequence[float], family: int | None = None) -> list[float]:
    """Correct p-values for their number (Holm 1979).

    Args:
        p_values: One for each comparison.
        family: How many comparisons there are, if there are more.
    """
    count = max(family or 0, len(p_values))
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, number in enumerate(np.argsort(p_values, kind="stable")):
        highest = max(highest, min(1.0, (count - rank) * p_values[number]))
        adjusted[number] = highest
    return adjusted


def find_smallest_difference(values: Values, noise: Noise) -> float | None:
    """Return the smallest difference of two variants that is found with a probability of 80 %.

    None if nothing is known of the noise.
    """
    if noise.variants < 2 or noise.seeds < 2:
        return None
    if noise.is_pooled:
        if not noise.freedom:
            return None
        critical = find_range(noise.variants, noise.freedom) / sqrt(2)
        error, freedom = noise.deviation * sqrt(2 / noise.seeds), noise.freedom
    else:
        paired = [_pair(one, other) for one, other in combinations(values.values(), 2)]
        deviations = [stdev(pairs) for pairs in paired if len(pairs) > 1]
        freedom = noise.seeds - 1
        alpha = (1 - LEVEL) / max(1, len(deviations))
        critical = float(stats.t.isf(alpha / 2, freedom))
        error = median(deviations) / sqrt(noise.seeds)
    shift = float(special.nctdtrinc(freedom, 1 - POWER, critical))
    if not isfinite(shift):
        # where the series does not converge
        shift = critical / sqrt(float(stats.chi2.ppf(1 - POWER, freedom)) / freedom)
    return shift * error


@lru_cache(maxsize=512)
def find_range(count: int, freedom: int) -> float:
    """Return the 95 % quantile of the studentized range of `count` means."""
    return float(
        brentq(lambda q: _exceed_range(q, count, freedom) - (1 - LEVEL), 0.1, 1e4, xtol=1e-6)
    )


def _exceed_range(value: float, count: int, freedom: int) -> float:
    """Return the probability that a studentized range exceeds a value.

    By quadrature, as scipy's takes half a second for one quantile; a test compares them.
    """
    nodes, weights, scales = _find_nodes(freedom)
    largest = 8 * nodes
    below = special.ndtr(largest) - special.ndtr(largest - value * scales[:, None])
    density = np.exp(-(largest**2) / 2) / sqrt(2 * np.pi)
    within = (count * density * below ** (count - 1) * 8) @ weights
    return float(np.clip(1 - within @ weights / 2, 0, 1))


@lru_cache(maxsize=128)
def _find_nodes(freedom: int) -> tuple[NDArray[np.float64], ...]:
    """Return nodes and weights on [-1, 1], and quantiles of the estimated deviation at them."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return nodes, weights, np.sqrt(stats.chi2.ppf((nodes + 1) / 2, freedom) / freedom)


def _fit_layout(values: Values) -> tuple[NDArray[np.float64], int]:
    """Return the sum of squared residuals of each variant, and the degrees of freedom of all."""
    seeds = sorted({seed for own in values.values() for seed in own})
    rows, targets, owners = [], [], []
    for number, own in enumerate(values.values()):
        for seed, value in own.items():
            row = np.zeros(len(values) + len(seeds))
            row[number] = row[len(values) + seeds.index(seed)] = 1
            rows.append(row)
            targets.append(value)
            owners.append(number)
    design, reached = np.array(rows), np.array(targets)
    solution, _, rank, _ = np.linalg.lstsq(design, reached, rcond=None)
    residuals = reached - design @ solution
    residuals[np.abs(residuals) < ROUNDING * np.abs(reached).max()] = 0
    squares = np.zeros(len(values))
    np.add.at(squares, owners, residuals**2)
    return squares, len(rows) - int(rank)


def _find_unequal(values: Values, squares: NDArray[np.float64]) -> str:
    """Say which variant obviously has another variance than the others, if one has."""
    constant = [name for name, own in values.items() if len(set(own.values())) == 1]
    if constant and len(constant) < len(values):
        verb = "is" if len(constant) == 1 else "are"
        shown = ", ".join(constant[:3]) + (" and others" if len(constant) > 3 else "")
        return f"{shown} {verb} alike in all seeds, others are not"
    count = len(values)
    freedom = max(len(own) for own in values.values()) - 1
    if count < 3 or not squares.any():
        return ""
    ratio = float(stats.f.isf(UNEQUAL / count, freedom, (count - 1) * freedom))
    share = float(squares.max() / squares.sum())
    if share <= 1 / (1 + (count - 1) / ratio):
        return ""
    name = [*values][int(squares.argmax())]
    return f"{name} varies more from seed to seed than the others"


def _pair(one: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    return [one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())]


def _bound(mean: float, half: float, count: int, bounds: tuple[float, float]) -> Estimate:
    width = bounds[1] - bounds[0]
    return Estimate(mean, max(mean - half, -width), min(mean + half, width), count)


def _judge_pooled(pairs: Sequence[float], noise: Noise, bounds: tuple[float, float]) -> Difference:
    mean, count = fmean(pairs), len(pairs)
    if count < 2 or not noise.freedom:
        return Difference(estimate=Estimate(mean, None, None, count), p_value=None)
    error = noise.deviation / sqrt(count)
    half = find_range(noise.variants, noise.freedom) * error
    p_value = float(mean == 0)
    if error > 0:
        p_value = _exceed_range(abs(mean) / error, noise.variants, noise.freedom)
    return Difference(estimate=_bound(mean, half, count, bounds), p_value=p_value)


def _judge_by_holm(
    paired: Mapping[tuple[str, str], Sequence[float]],
    noise: Noise | None,
    bounds: tuple[float, float],
    family: int | None = None,
) -> dict[tuple[str, str], Difference]:
    """Judge pairs by Student's t, with the pooled noise if there is one, else with their own.

    The interval of a pair has the level at which Holm's procedure tests it, so that it leaves 0 out
    if and only if the corrected p-value is below 5 %.
    """
    found = {}
    tested = {}
    for name, pairs in paired.items():
        mean, count = fmean(pairs), len(pairs)
        if count < 2 or (noise is not None and not noise.freedom):
            found[name] = Difference(estimate=Estimate(mean, None, None, count), p_value=None)
            continue
        spread = stdev(pairs) if noise is None else noise.deviation * sqrt(2)
        freedom = count - 1 if noise is None else noise.freedom
        error = spread / sqrt(count)
        if error <= ROUNDING * abs(mean):
            p_value = float(mean == 0)
        else:
            p_value = 2 * float(stats.t.sf(abs(mean) / error, freedom))
        tested[name] = (mean, count, error, freedom, p_value)

    p_values = [one[-1] for one in tested.values()]
    adjusted = adjust_by_holm(p_values, family)
    size = max(family or 0, len(tested))
    rejected = sum(one < 1 - LEVEL for one in adjusted)
    ranks = np.argsort(np.argsort(p_values, kind="stable"), kind="stable")
    for (name, (mean, count, error, freedom, _)), p_value, rank in zip(
        tested.items(), adjusted, ranks, strict=True
    ):
        alpha = (1 - LEVEL) / max(1, size - min(int(rank), rejected))
        half = float(stats.t.isf(alpha / 2, freedom)) * error
        found[name] = Difference(estimate=_bound(mean, half, count, bounds), p_value=p_value)
    return found


def _reverse(found: Difference) -> Difference:
    one = found.estimate
    low, high = (None if end is None else -end for end in (one.high, one.low))
    return Difference(estimate=Estimate(-one.mean, low, high, one.count), p_value=found.p_value)
