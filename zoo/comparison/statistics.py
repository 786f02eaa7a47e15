"""Intervals over seeds, and comparisons of variants that are corrected for their number.

Cells of one seed share initial weights and the order of samples, so a comparison is a block design:
value = variant + seed + noise, one value for each variant and seed.

Every variant has its own variance, estimated from all variants of the layout (Grubbs 1948): the
effects of seeds are removed, and what the removal mixes between variants is solved for. A pair is
judged by the sum of its two variances, with Satterthwaite's degrees of freedom, as Games and Howell
(1976) do it without blocks; if its paired differences vary more than that, by their variance.
Nothing is pooled. A common variance would have (V - 1)(S - 1) degrees of freedom, but of ten
variants with three seeds, one of which varies five times as much as the others, it raises 19 %
false alarms where 5 % are promised. The price: intervals of ten variants with equal
noise are 2.1 times as wide with three seeds, 1.4 times with five and 1.2 times with eight
(docs/records/error_rates.json, by tests/benchmarks/error_rates.py).

Differences are to the variant with the best mean. It is chosen by the data, so Dunnett's intervals,
which are for a control that was named beforehand, would be too narrow, and so are Hsu's one-sided
constants where they are read as "worse": of 20 equal variants they exclude some nearly every time.
The intervals are those of all pairs (Tukey 1953, Kramer 1956), which imply multiple comparisons
with the best (Hsu 1996, section 4.2): with probability 95 % no variant is called worse that is not,
and the best one is among those that may be best. Comparisons that were named before the run
(`compare_named`) need no correction for that choice, only for their number: Bonferroni's, whose
intervals are simultaneous. (Holm's p-values are smaller, but intervals at their levels are not.)

Fewer than three values have no interval: two that happen to agree would have one of width zero.
Nor has a pair whose paired differences are all equal, and of six or more variants each needs five
values: of many variants whose seeds either solve a task or fail, some would else differ by chance.

Test sets are finite, and a share of right answers has steps. The variance of a paired difference is
therefore at least what the samples add on which two variants must differ: |difference| / n, and not
below 1 / n^2, of n test samples (`find_samples`). All variants are tested on the same samples:
intervals are over seeds, for this test set.

Student's t decides, and an exact permutation test must agree where it can: it deals the values of
the two variants, less the mean of their seed over all variants, to them anew. Its smallest p-value
is 0.1 with three values of each and 0.008 with five. An interval is widened to hold 0 where that
test could have found a difference and did not: p above 0.05, which is corrected for the number of
pairs where permutations are fine enough for that. With so few values that they cannot,
the noise of all variants is the least that a pair is granted, since three values tell hardly
anything of their own variance. docs/error_rates.md has the error rates of all this by simulation:
seeds that split, ceilings, rounding, heavy tails, unequal noise.

scipy is imported by the functions that compute with it: a request is read without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from math import comb, floor, inf, isfinite, sqrt
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
POWER = 0.8
ANY_VALUE = (-inf, inf)
# fewer values have no interval
FEWEST = 3
# fewer variants tell nothing of each other's variance
FEWEST_VARIANTS = 4
# significance of Cochran's test, which only names a variant
UNEQUAL = 0.01
# shares of the largest value that are rounding
ROUNDING = 1e-12
# as many variants need MANY_NEED values each
MANY, MANY_NEED = 6, 5
# the significance of permutations that confirm what t finds
CONFIRMED = 0.05
# possible p-values below a corrected level, so that permutations do not ask for full separation
FINE = 10
# more assignments of values to two variants are sampled
MOST_ASSIGNMENTS = 10_000
# larger test sets have steps too small to matter, and to be seen in single precision
MOST_SAMPLES = 20_000
# relative error of a share in single precision
SINGLE = 1.2e-7
# of the quadrature of the studentized range
NODES = 96

Values = Mapping[str, Mapping[int, float]]
"""{variant: {seed: value}}"""


@dataclass(frozen=True)
class Estimate:
    """A mean of `count` values with a 95 % interval; fewer than three values have none."""

    mean: float
    low: float | None
    high: float | None
    count: int


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The noise of a comparison under one condition."""

    variants: int
    """Number of variants with at least two values."""
    seeds: int
    """Number of seeds of the variant that has most."""
    deviation: float
    """Standard deviation of a value without the effect of its seed, over all variants."""
    freedom: int
    """Degrees of freedom of the deviation; 0 if nothing can be estimated."""
    variances: Mapping[str, float]
    """{variant: variance of its values without the effects of seeds}; empty if fewer than four
    variants leave nothing to solve for."""
    samples: int | None = None
    """Number of test samples that the values are shares of; None if they are no shares."""
    warning: str = ""
    """Which variant has obviously another variance than the others; empty if none has."""


class Pair(NamedTuple):
    """A comparison that was named before the run: one - other - margin."""

    one: str
    other: str
    margin: float = 0.0
    """In units of the metric."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference of two variants over the seeds of both."""

    estimate: Estimate
    """With a simultaneous interval."""
    p_value: float | None
    """Corrected for all comparisons of its family; None if there is no interval."""
    permutation: Permutation | None = None
    """The permutation test beside it; None if there is no interval."""


@dataclass(frozen=True, kw_only=True)
class Equality:
    """The outcome of two one-sided tests."""

    estimate: Estimate
    """The difference, with the interval of both tests."""
    is_equal: bool
    """True if both tests exclude a difference as large as the margin."""
    is_different: bool
    """True if the difference exceeds the margin."""


@dataclass(frozen=True)
class Permutation:
    """An exact test: how the values could have been dealt to the two variants (Fisher 1935)."""

    p_value: float
    """The share of all assignments whose means differ at least as much, in either direction."""
    smallest: float
    """The smallest p-value that so many values can have."""

    @property
    def can_decide(self) -> bool:
        """True if there are enough values for a p-value below 0.05; else t decides alone."""
        return self.smallest <= CONFIRMED

    def contradicts(self, family: int) -> bool:
        """Return whether the test could have found a difference and did not.

        Args:
            family: Number of pairs that are judged together. The level is corrected for them where
                permutations are fine enough: ten p-values lie below it.
        """
        corrected = CONFIRMED / family
        level = corrected if self.smallest <= corrected / FINE else CONFIRMED
        return self.can_decide and self.p_value > level


@dataclass(frozen=True)
class PairedMean:
    """A mean paired difference and its precision."""

    mean: float
    count: int
    error: float
    """Standard error of the mean."""
    freedom: float
    """Degrees of freedom of the error."""
    permutation: Permutation | None = None
    """The permutation test of the same values."""


def estimate_mean(values: Sequence[float], bounds: tuple[float, float] = ANY_VALUE) -> Estimate:
    """Estimate the mean of at least one value, of unknown variance (Student, 1908).

    Args:
        values: Independent values.
        bounds: The range of the values. An interval that ends there holds the true mean as often
            as one that exceeds it.
    """
    mean, count = fmean(values), len(values)
    if count < FEWEST:
        return Estimate(mean, None, None, count)
    from scipy import special

    half = float(special.stdtrit(count - 1, (1 + LEVEL) / 2)) * sqrt(_vary(values) / count)
    return Estimate(mean, max(mean - half, bounds[0]), min(mean + half, bounds[1]), count)


def measure_noise(values: Values) -> Noise:
    """Estimate the noise of a layout of variants and seeds, some of whose values may be missing.

    Args:
        values: Finite values; variants with one value are left out.
    """
    samples = find_samples([value for row in values.values() for value in row.values()])
    repeated = {name: by_seed for name, by_seed in values.items() if len(by_seed) > 1}
    seeds = max((len(by_seed) for by_seed in repeated.values()), default=0)
    if len(repeated) < 2:
        return Noise(
            variants=len(repeated),
            seeds=seeds,
            deviation=0.0,
            freedom=0,
            variances={},
            samples=samples,
        )

    # E[squares] = shares @ variances (Grubbs): solved below for the variances
    squares, shares, freedom = _fit_layout(repeated)
    variances = {}
    if len(repeated) >= FEWEST_VARIANTS and freedom > 0:
        variances = dict(zip(repeated, _solve_variances(squares, shares).tolist(), strict=True))
    return Noise(
        variants=len(repeated),
        seeds=seeds,
        deviation=sqrt(float(squares.sum()) / freedom) if freedom > 0 else 0.0,
        freedom=max(0, freedom),
        variances=variances,
        samples=samples,
        warning=_find_unequal(repeated, squares),
    )


def find_samples(values: Sequence[float]) -> int | None:
    """Return the number of test samples that values are shares of, from the values alone.

    Args:
        values: Values of one metric on one test set, exact to single precision.

    Returns:
        The smallest number that all values are multiples of 1 over; None if it is above 20,000,
        as with losses.
    """
    distinct = np.unique(np.asarray(values, dtype=np.float64))
    if not distinct.size or distinct[0] < 0 or distinct[-1] > 1:
        return None
    counts = np.arange(1, MOST_SAMPLES + 1)
    for value in distinct:
        right = value * counts
        # the nearest whole number of right answers rounds to the same share
        counts = counts[np.abs(right - np.round(right)) <= SINGLE * np.maximum(right, SINGLE)]
        if not counts.size:
            return None
    return int(counts[0])


def compare_all(
    values: Values,
    first: str,
    noise: Noise,
    bounds: tuple[float, float] = ANY_VALUE,
    level: float = LEVEL,
    *,
    is_guarded: bool = True,
) -> dict[str, Difference]:
    """Compare all variants with one that the data chose, as the best mean.

    The family is that of all pairs: see the docstring of this module.

    Args:
        values: Finite values of each variant.
        first: The variant that others are compared with.
        noise: What `measure_noise` found for the same values.
        bounds: The range of the values.
        level: Probability that all intervals hold their true differences.
        is_guarded: Whether few values, equal differences, steps of the metric and permutations
            count; version 0.3.0 decided without them.

    Returns:
        {variant: its difference to the first}, of variants that share a seed with it.
    """
    differences = {}
    for name, by_seed in values.items():
        if name == first or not by_seed.keys() & values[first].keys():
            continue
        pair = compare_pair(values, Pair(name, first), noise, is_guarded=is_guarded)
        needed = MANY_NEED if is_guarded and noise.variants >= MANY else FEWEST
        if isinstance(pair, PairedMean) and pair.count < needed:
            pair = Estimate(pair.mean, None, None, pair.count)
        if isinstance(pair, Estimate):
            differences[name] = Difference(estimate=pair, p_value=None)
            continue
        differences[name] = _judge_pair(pair, noise.variants, bounds, level)
    return differences


def compare_named(
    values: Values,
    pairs: Sequence[Pair],
    noise: Noise,
    bounds: tuple[float, float] = ANY_VALUE,
    *,
    family: int | None = None,
    level: float = LEVEL,
) -> dict[Pair, Difference]:
    """Compare pairs of variants that were named before the run, with Bonferroni's correction.

    Args:
        values: Finite values of each variant.
        pairs: What is compared: one - other - margin.
        noise: What `measure_noise` found for the same values.
        bounds: The range of the values.
        family: How many comparisons are corrected for; as many as there are pairs by default.
        level: Probability that all intervals hold their true differences.

    Returns:
        {pair: difference}, of pairs that share a seed.
    """
    size = max(family or 0, len(pairs))
    differences = {}
    for pair in pairs:
        if not values.get(pair.one, {}).keys() & values.get(pair.other, {}).keys():
            continue
        mean = compare_pair(values, pair, noise)
        if isinstance(mean, Estimate):
            differences[pair] = Difference(estimate=mean, p_value=None)
            continue
        differences[pair] = _judge_by_bonferroni(mean, size, bounds, level)
    return differences


def compare_pair(
    values: Values, pair: Pair, noise: Noise, *, is_guarded: bool = True
) -> PairedMean | Estimate:
    """Return the mean difference of a pair that shares a seed, and its precision.

    An Estimate without an interval if it shares fewer than three seeds, or differs by the same in
    all of them.
    """
    left, right = values[pair.one], values[pair.other]
    seeds = sorted(left.keys() & right.keys())
    differences = [left[seed] - right[seed] for seed in seeds]
    mean, count = fmean(differences) - pair.margin, len(differences)
    scale = max(map(abs, (*left.values(), *right.values())))
    is_constant = max(differences) - min(differences) <= ROUNDING * scale
    if count < FEWEST or (is_guarded and is_constant):
        return Estimate(mean, None, None, count)

    effects = _average_seeds(values, seeds)
    permutation = permute(
        tuple(left[seed] - pair.margin - effects[seed] for seed in seeds),
        tuple(right[seed] - effects[seed] for seed in seeds),
    )
    squared, freedom = _vary(differences), float(count - 1)
    if pair.one in noise.variances and pair.other in noise.variances:
        parts = (noise.variances[pair.one], noise.variances[pair.other])
        total = sum(parts)
        if total > 0:
            # Satterthwaite 1946, in halves, so that quantiles are found once
            owned = (len(left) - 1, len(right) - 1)
            rate = sum(part**2 / degrees for part, degrees in zip(parts, owned, strict=True))
            freedom = floor(2 * total**2 / rate + ROUNDING) / 2
        # the larger of both: variances alone assume that noise of the two variants is independent
        squared = max(squared, total)
    if not is_guarded:
        return PairedMean(mean, count, sqrt(squared / count), freedom)
    # so few seeds do not show their own noise, so they have at least that of all variants
    if not permutation.can_decide:
        squared = max(squared, 2 * noise.deviation**2)
    # a share of so many samples varies at least as counts do
    if noise.samples:
        squared = max(squared, abs(fmean(differences)) / noise.samples, 1 / noise.samples**2)
    return PairedMean(mean, count, sqrt(squared / count), freedom, permutation)


def _average_seeds(values: Values, seeds: Sequence[int]) -> dict[int, float]:
    """Return {seed: mean of all variants that have it}, the effect of a seed but for a constant."""
    rows = values.values()
    return {seed: fmean(row[seed] for row in rows if seed in row) for seed in seeds}


@lru_cache(maxsize=4096)
def permute(first: tuple[float, ...], second: tuple[float, ...]) -> Permutation:
    """Test whether two variants' values differ by exchanging them between the variants.

    The test is unpaired: with n values of each it has (2n)! / n!^2 assignments, a paired one only
    2^n. What the seeds have in common is removed from the values before. Above 10,000 assignments,
    as many are drawn with a fixed seed.

    Args:
        first: The values of one variant.
        second: As many of the other.
    """
    count, pooled = len(first), np.array([*first, *second])
    total = comb(2 * count, count)
    chosen = _list_assignments(count)
    # twice the sum of those that one variant gets, less the sum of all: the difference of sums
    differences = np.abs(2 * (chosen @ pooled) - pooled.sum())
    observed = abs(sum(first) - sum(second))
    as_large = differences >= observed - ROUNDING * np.abs(pooled).sum()
    # of assignments that are drawn, the observed one alone may be as large
    smallest = max(2 / total, 1 / len(chosen))
    return Permutation(p_value=float(as_large.mean()), smallest=smallest)


@lru_cache(maxsize=16)
def _list_assignments(count: int) -> NDArray[np.float64]:
    """Return which of 2n values one of two variants gets, [assignments, 2n], the observed first."""
    total = comb(2 * count, count)
    if total <= MOST_ASSIGNMENTS:
        rows = np.array([*combinations(range(2 * count), count)])
    else:
        rng = np.random.default_rng(0)
        # the observed assignment is one of them, so that no p-value is 0
        drawn = rng.random((MOST_ASSIGNMENTS - 1, 2 * count)).argsort(1)[:, :count]
        rows = np.concatenate([np.arange(count)[None], drawn])
    chosen = np.zeros((len(rows), 2 * count))
    np.put_along_axis(chosen, rows, 1.0, 1)
    return chosen


def explain_no_interval(count: int, unit: str) -> str:
    """Return why a named pair has no interval.

    Args:
        count: The number of seeds or studies that both variants have.
        unit: What they are: seeds or studies.
    """
    if count < FEWEST:
        return f"fewer than three {unit} can be compared"
    return f"both differ by the same in all {count} {unit}, so that the noise is unknown"


def excludes_zero(found: Estimate | None) -> bool:
    """Return whether an interval leaves 0 out."""
    if found is None or found.low is None or found.high is None:
        return False
    return found.low > 0 or found.high < 0


def find_smallest_difference(values: Values, noise: Noise, level: float = LEVEL) -> float | None:
    """Return the smallest difference of two variants that is found with a probability of 80 %.

    None if nothing is known of the noise.

    Args:
        values: Finite values of each variant.
        noise: What `measure_noise` found for the same values.
        level: Probability that all intervals hold their true differences.
    """
    means = [
        compare_pair(values, Pair(name, other_name), noise)
        for name, other_name in combinations(values, 2)
        if values[name].keys() & values[other_name].keys()
    ]
    paired = [mean for mean in means if isinstance(mean, PairedMean)]
    if not paired or (noise.variants >= MANY and noise.seeds < MANY_NEED):
        return None
    # of all pairs, since the smallest difference is stated once for the whole comparison
    error, freedom = median(mean.error for mean in paired), median(mean.freedom for mean in paired)
    # in units of the error: the interval around 0 ends at the critical value
    judged = _judge_pair(PairedMean(0.0, FEWEST, 1.0, freedom), noise.variants, ANY_VALUE, level)
    return _find_shift(judged.estimate.high or 0.0, freedom) * error


def find_smallest_named(pair: PairedMean, family: int, level: float = LEVEL) -> float:
    """Return the smallest difference of a named pair that is found with a probability of 80 %.

    Args:
        pair: The precision of its mean difference.
        family: How many comparisons are corrected for (Bonferroni).
        level: Probability that all intervals hold their true differences.
    """
    centred = PairedMean(0.0, FEWEST, 1.0, pair.freedom)
    judged = _judge_by_bonferroni(centred, family, ANY_VALUE, level)
    return _find_shift(judged.estimate.high or 0.0, pair.freedom) * pair.error


def _find_shift(critical: float, freedom: float) -> float:
    """Return the noncentrality at which t exceeds a critical value with probability POWER."""
    from scipy import special, stats

    shift = float(special.nctdtrinc(freedom, 1 - POWER, critical))
    if isfinite(shift):
        return shift
    # where the series does not converge
    return critical / sqrt(float(stats.chi2.ppf(1 - POWER, freedom)) / freedom)


def compare_equality(
    values: Values, pair: Pair, noise: Noise, *, family: int, level: float = LEVEL
) -> Equality | None:
    """Test by two one-sided tests (Schuirmann 1987) whether a pair differs by less than a margin.

    Args:
        values: Finite values of each variant.
        pair: The pair, and the margin.
        noise: What `measure_noise` found for the same values.
        family: How many comparisons are corrected for (Bonferroni).
        level: Probability that all intervals hold their true differences. Each one-sided test has
            all of the false alarms, so that the interval of both leaves out twice as many.

    Returns:
        The difference with the interval of the two tests; None if it has no interval.
    """

    def estimate(margin: float, own_level: float) -> Estimate | None:
        # each in a call of its own: the family is that of the hypotheses
        named = pair._replace(margin=margin)
        difference = compare_named(values, [named], noise, family=family, level=own_level).get(
            named
        )
        return difference.estimate if difference else None

    shown = estimate(0.0, 2 * level - 1)
    if shown is None or shown.low is None:
        return None
    upper, lower = (estimate(margin, 2 * level - 1) for margin in (pair.margin, -pair.margin))
    beyond, short = (estimate(margin, level) for margin in (pair.margin, -pair.margin))
    return Equality(
        estimate=shown,
        is_equal=_lies(upper, -1) and _lies(lower, 1),
        is_different=_lies(beyond, 1) or _lies(short, -1),
    )


def _lies(estimate: Estimate | None, side: int) -> bool:
    """Return whether an interval lies on one side of 0."""
    return estimate is not None and excludes_zero(estimate) and side * estimate.mean > 0


@lru_cache(maxsize=512)
def find_range(count: int, freedom: float, level: float = LEVEL) -> float:
    """Return the quantile of the studentized range of `count` means at a level."""
    from scipy.optimize import brentq

    def exceed(value: float) -> float:
        return _exceed_range(value, count, freedom) - (1 - level)

    return float(brentq(exceed, 0.1, 1e4, xtol=1e-6))


def _exceed_range(value: float, count: int, freedom: float) -> float:
    """Return the probability that a studentized range exceeds a value.

    By quadrature, as scipy's takes half a second for one quantile; a test compares them.
    """
    from scipy import special

    nodes, weights, scales = _find_nodes(freedom)
    # integrates over the largest of the means, whose density vanishes beyond 8 deviations
    largest = 8 * nodes
    below = special.ndtr(largest) - special.ndtr(largest - value * scales[:, None])
    density = np.exp(-(largest**2) / 2) / sqrt(2 * np.pi)
    within = (count * density * below ** (count - 1) * 8) @ weights
    return float(np.clip(1 - within @ weights / 2, 0, 1))


@lru_cache(maxsize=128)
def _find_nodes(freedom: float) -> tuple[NDArray[np.float64], ...]:
    """Return nodes and weights on [-1, 1], and quantiles of the estimated deviation at them."""
    from scipy import stats

    # nodes are spread over probabilities of the deviation, so its density is not needed
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    return nodes, weights, np.sqrt(stats.chi2.ppf((nodes + 1) / 2, freedom) / freedom)


def _fit_layout(values: Values) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Remove the effects of variants and seeds.

    Returns:
        The sum of squared residuals [V] of each variant, the shares [V, V] of each variant's
        variance in the expectation of these sums, and the degrees of freedom of all residuals.
    """
    seeds = sorted({seed for observed in values.values() for seed in observed})
    count = len(values)
    if all(len(observed) == len(seeds) for observed in values.values()):
        # without gaps, the effects are means of rows and columns, and no matrix is inverted
        table = np.array([[observed[seed] for seed in seeds] for observed in values.values()])
        return measure_table(table)

    rows, targets, owners = [], [], []
    for number, by_seed in enumerate(values.values()):
        for seed, value in by_seed.items():
            row = np.zeros(count + len(seeds))
            row[number] = row[count + seeds.index(seed)] = 1
            rows.append(row)
            targets.append(value)
            owners.append(number)
    design, reached = np.array(rows), np.array(targets)
    # what leaves residuals: residuals = remover @ values
    remover = np.eye(len(rows)) - design @ np.linalg.pinv(design)
    residuals = remover @ reached
    # equal values would otherwise have a variance of rounding errors, and differ "significantly"
    residuals[np.abs(residuals) < ROUNDING * np.abs(reached).max()] = 0
    squares = np.zeros(count)
    np.add.at(squares, owners, residuals**2)
    member = np.eye(count)[owners]
    return squares, member.T @ remover**2 @ member, round(float(np.trace(remover)))


def measure_table(
    table: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Remove the effects of variants and seeds from a layout that lacks no value.

    Args:
        table: Values [V, S] by variant and seed.

    Returns:
        The sum of squared residuals [V] of each variant, the shares [V, V] of each variant's
        variance in the expectation of these sums, and the degrees of freedom of all residuals.
    """
    count, seeds = table.shape
    residuals = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    residuals[np.abs(residuals) < ROUNDING * np.abs(table).max()] = 0
    # removing means of rows and columns mixes the variances of the other variants into each
    shares = (seeds - 1) * ((1 - 2 / count) * np.eye(count) + 1 / count**2)
    return (residuals**2).sum(1), shares, (count - 1) * (seeds - 1)


def measure_pairs(
    table: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Measure the precision of all pairs of a layout that lacks no value, as `compare_pair` does.

    Args:
        table: Values [V, S] by variant and seed, of three seeds at least.

    Returns:
        The squared standard error [V, V] of each mean difference, its degrees of freedom [V, V],
        and the squared standard error of a mean without the effect of seeds, over all variants.
    """
    count, seeds = table.shape
    squares, shares, freedom = measure_table(table)
    common = float(squares.sum()) / freedom / seeds
    paired = table[:, None] - table
    paired -= paired.mean(-1, keepdims=True)
    squared = np.asarray(np.square(paired).sum(-1) / (seeds - 1), dtype=np.float64)
    degrees = np.full((count, count), float(seeds - 1))
    if count >= FEWEST_VARIANTS:
        variances = _solve_variances(squares, shares)
        total, rate = variances[:, None] + variances, variances[:, None] ** 2 + variances**2
        np.divide(degrees * total**2, rate, out=degrees, where=rate > 0)
        np.maximum(squared, total, out=squared)
    squared /= seeds
    return squared, degrees, common


def _solve_variances(
    squares: NDArray[np.float64], shares: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the variances [V] whose expected sums of squares are those found (Grubbs 1948)."""
    solution = np.asarray(np.linalg.lstsq(shares, squares, rcond=None)[0], dtype=np.float64)
    # the unbiased solution may be negative where the true variance is small
    return np.maximum(solution, 0.0)


def _find_unequal(values: Values, squares: NDArray[np.float64]) -> str:
    """Describe which variant obviously has another variance than the others, if one has."""
    constant = [f"`{name}`" for name, by_seed in values.items() if len(set(by_seed.values())) == 1]
    if constant and len(constant) < len(values):
        verb = "has" if len(constant) == 1 else "each have"
        shown = ", ".join(constant[:3]) + (" and others" if len(constant) > 3 else "")
        return f"{shown} {verb} the same value for all seeds"
    count = len(values)
    freedom = max(len(by_seed) for by_seed in values.values()) - 1
    if count < 3 or not squares.any():
        return ""
    if float(squares.max() / squares.sum()) <= _find_largest_share(count, freedom):
        return ""
    name = [*values][int(squares.argmax())]
    return f"`{name}` varies more from seed to seed than the others"


@lru_cache(maxsize=128)
def _find_largest_share(count: int, freedom: int) -> float:
    """Return the share of all squares above which one variant obviously varies more (Cochran)."""
    from scipy import stats

    ratio = float(stats.f.isf(UNEQUAL / count, freedom, (count - 1) * freedom))
    return 1 / (1 + (count - 1) / ratio)


def _vary(values: Sequence[float]) -> float:
    """Return the variance of at least two values."""
    # statistics.variance takes fifty times as long
    mean = fmean(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _judge_pair(
    pair: PairedMean, variants: int, bounds: tuple[float, float], level: float
) -> Difference:
    """Judge a pair as one of all pairs of variants."""
    if variants < FEWEST_VARIANTS:
        # paired differences of three variants depend on each other otherwise than means do
        return _judge_by_bonferroni(pair, comb(variants, 2), bounds, level)
    critical = find_range(variants, pair.freedom, level) / sqrt(2)
    # without noise a difference is certain: its p-value is 1 if it is 0, else 0
    p_value = float(pair.mean == 0)
    if pair.error > ROUNDING * abs(pair.mean):
        p_value = _exceed_range(sqrt(2) * abs(pair.mean) / pair.error, variants, pair.freedom)
    return _state(pair, critical, bounds, p_value, comb(variants, 2))


def _judge_by_bonferroni(
    pair: PairedMean, family: int, bounds: tuple[float, float], level: float
) -> Difference:
    """Judge a pair as one of a family of comparisons."""
    from scipy import special

    critical = -float(special.stdtrit(pair.freedom, (1 - level) / family / 2))
    p_value = float(pair.mean == 0)
    if pair.error > ROUNDING * abs(pair.mean):
        p_value = 2 * float(special.stdtr(pair.freedom, -abs(pair.mean) / pair.error))
    return _state(pair, critical, bounds, min(1.0, family * p_value), family)


def _state(
    pair: PairedMean, critical: float, bounds: tuple[float, float], p_value: float, family: int
) -> Difference:
    """State a difference; a permutation test that contradicts t widens the interval to hold 0."""
    estimate = _bound(pair, critical, bounds)
    permutation = pair.permutation
    if permutation and permutation.contradicts(family) and excludes_zero(estimate):
        assert estimate.low is not None
        assert estimate.high is not None
        estimate = replace(estimate, low=min(estimate.low, 0.0), high=max(estimate.high, 0.0))
        p_value = max(p_value, min(1.0, family * permutation.p_value))
    return Difference(estimate=estimate, p_value=p_value, permutation=pair.permutation)


def _bound(pair: PairedMean, critical: float, bounds: tuple[float, float]) -> Estimate:
    """Return the interval of a difference, which ends where values do."""
    # a difference of two values in a range is at most as wide as the range
    width, half = bounds[1] - bounds[0], critical * pair.error
    return Estimate(
        pair.mean, max(pair.mean - half, -width), min(pair.mean + half, width), pair.count
    )
