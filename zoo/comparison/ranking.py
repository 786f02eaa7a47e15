"""Rank variants under a condition: which may be best, and which are worse."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from math import inf, isfinite
from statistics import fmean, median
from typing import Any, Literal

from zoo.comparison.results import Comparison, ComparisonCell, StoppedVariant, Variant
from zoo.comparison.solving import SolvedCount, count_solved
from zoo.comparison.statistics import (
    LEVEL,
    Difference,
    Estimate,
    Noise,
    compare_all,
    estimate_mean,
    excludes_zero,
    find_smallest_difference,
    measure_noise,
)
from zoo.comparison.training_end import list_steep
from zoo.reporting.numbers import format_number
from zoo.reporting.panel import Scale
from zoo.run.conditions import Condition
from zoo.run.processes import PASSES, StepSize

Verdict = Literal["best", "possible", "worse", "unsure", "missing"]
"""Where a variant stands: see `Standing.verdict`."""

# a variant this many times as far from the first as the median one is not drawn
FAR = 8.0
# intervals may extend the scale by this many times the spread of all seeds
MAX_EXTENSION = 2.0
MARGIN = 0.04


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One variant under one condition."""

    variant: Variant
    values: Mapping[int, float]
    """{seed: value} of seeds with a finite value."""
    mean: Estimate | None
    difference: Estimate | None
    """Difference to the first variant, over the seeds of both, with its simultaneous interval."""
    p_value: float | None
    """Of that difference, corrected for all pairs of variants."""
    verdict: Verdict
    """best: the first by its mean, or equal to it in every seed; possible: it may be best, as the
    interval of its difference holds 0; worse: it is excluded; unsure: fewer than three seeds
    have both, or those that both have say that it is better, or some variant of the comparison was
    not trained to the end; missing: no seed has a value."""
    missing_reasons: tuple[str, ...]
    """Why seeds have no value."""
    dropped: StoppedVariant | None = None
    """The look that found it worse, in a race by this metric under this condition."""
    solved: SolvedCount | None = None
    """How many seeds solved the task, where they are split; the mean then has no interval."""


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The differences that the seeds can establish under one condition."""

    noise: Noise
    differences: Mapping[str, Difference]
    """{variant: difference to the first}"""
    smallest_difference: float | None
    """What is found with a probability of 80 %, if it is true; None if nothing is known."""


def rank_variants(
    comparison: Comparison, condition: Condition, level: float | None = None
) -> tuple[Standing, ...]:
    """Rank all variants under a condition, the best first; those without a value are last.

    Args:
        comparison: The comparison.
        condition: The condition.
        level: The probability with which all intervals of differences hold together. None: that
            of the comparison.
    """
    order, values = _order_variants(comparison, condition)
    best = values[order[0].name] if order else {}
    differences = analyze_condition(comparison, condition, level).differences
    return tuple(
        _build_standing(
            comparison,
            variant,
            condition,
            values[variant.name],
            differences.get(variant.name),
            is_best=values[variant.name] == best,
        )
        for variant in order
    )


def analyze_condition(
    comparison: Comparison, condition: Condition, level: float | None = None
) -> Analysis:
    """Compare all variants with the first under a condition.

    Args:
        comparison: The comparison.
        condition: The condition.
        level: As of `rank_variants`.
    """
    order, values = _order_variants(comparison, condition)
    ordered = tuple(
        (variant.name, tuple(sorted(values[variant.name].items())))
        for variant in order
        if values[variant.name]
    )
    return _analyze_values(ordered, comparison.bounds, level or find_level(comparison, condition))


@lru_cache(maxsize=256)
def _analyze_values(
    rows: tuple[tuple[str, tuple[tuple[int, float], ...]], ...],
    bounds: tuple[float, float],
    level: float,
) -> Analysis:
    """Analyse values of variants, the first ones first; text and page ask for it many times."""
    values = {name: dict(items) for name, items in rows}
    noise = measure_noise(values)
    differences = compare_all(values, rows[0][0], noise, bounds, level) if rows else {}
    return Analysis(
        noise=noise,
        differences=differences,
        smallest_difference=find_smallest_difference(values, noise, level),
    )


def find_level(comparison: Comparison, condition: Condition | None = None) -> float:
    """Return the probability with which all intervals of differences hold together.

    A race has several looks, each of which has its share of the false alarms, and a comparison that
    was made longer has fewer of them left. They are shared by all conditions (Bonferroni), unless
    one was declared to be the question: that one has them all, and the others, which explore, share
    as many once more. A race is about the trained condition.

    Args:
        comparison: The comparison.
        condition: The condition that is judged; None: what is not about a condition.
    """
    alpha = (1 - LEVEL) / 2 ** len(comparison.earlier)
    if comparison.race is not None:
        alpha = 1 - comparison.race.level
    count = len(comparison.conditions)
    if condition is None or count == 1:
        return 1 - alpha
    question = find_question(comparison)
    if condition.name == question:
        return 1 - alpha
    return 1 - alpha / (count if question is None else count - 1)


def describe_levels(comparison: Comparison) -> str:
    """Describe at which levels the conditions of a comparison are judged."""
    trained, count = comparison.trained, len(comparison.conditions)
    question = find_question(comparison)
    if count == 1:
        return f"with {format_level(find_level(comparison))}"
    if question is None:
        level = format_level(find_level(comparison, trained))
        return f"with {level} each, which corrects for {count} conditions"
    other_condition = next(
        condition for condition in comparison.conditions if condition.name != question
    )
    return (
        f"with {format_level(find_level(comparison))} for the question ({question}) and "
        f"{format_level(find_level(comparison, other_condition))} for the other conditions, "
        "which explore"
    )


def format_level(level: float) -> str:
    """Return a probability in percent, as 99.5 %."""
    return f"{format_number(100 * level, 4)} %"


def find_question(comparison: Comparison) -> str | None:
    """Return the name of the condition that a comparison asks about; None: of all of them."""
    return comparison.trained.name if comparison.race is not None else comparison.question


def _order_variants(
    comparison: Comparison, condition: Condition
) -> tuple[list[Variant], dict[str, dict[int, float]]]:
    """Return the variants from best to worst, and their values."""
    sign = _sign(comparison)
    values = {
        variant.name: collect_values(variant, condition, comparison.measure)
        for variant in comparison.variants
    }

    def sort_key(variant: Variant) -> tuple[float, float]:
        by_seed = values[variant.name]
        stopped = comparison.race and comparison.race.find_stopped(variant.name)
        # the mean of fewer studies, easy ones perhaps, is no place among those that ran on
        place = -stopped.look if stopped else -inf
        return place, sign * estimate_mean(tuple(by_seed.values())).mean if by_seed else inf

    order = sorted(comparison.variants, key=sort_key)
    best = values[order[0].name] if order else {}
    # variants with the same values as the best share its place
    order.sort(key=lambda variant: values[variant.name] != best)
    return order, values


def average_baselines(
    comparison: Comparison, condition: Condition | None = None
) -> dict[str, float]:
    """Return {baseline: mean over cells} of the measure under a condition.

    Args:
        comparison: The comparison.
        condition: The condition; an extrapolation method has the baselines of its size. None: the
            test data of the recipe.
    """
    tested = find_samples(comparison, condition or comparison.trained)
    by_name: dict[str, list[float]] = {}
    for cell in comparison.cells:
        is_trained = tested == comparison.trained
        baselines = cell.baselines if is_trained else cell.find(tested).baselines
        for name, value in baselines.get(comparison.measure, {}).items():
            by_name.setdefault(name, []).append(value)
    return {name: fmean(values) for name, values in by_name.items()}


def find_samples(comparison: Comparison, condition: Condition) -> Condition:
    """Return the condition of the same samples whose encodings are unchanged."""
    if condition.extrapolation is None:
        return condition
    unchanged = (
        candidate for candidate in comparison.conditions if candidate.extrapolation is None
    )
    return next(
        (candidate for candidate in unchanged if candidate.size == condition.size), condition
    )


def find_winning_baseline(comparison: Comparison, condition: Condition | None = None) -> str | None:
    """Return the best baseline if no variant beats it under a condition, else None.

    Args:
        comparison: The comparison.
        condition: The condition. None: the test data of the recipe.
    """
    condition = condition or comparison.trained
    baselines = average_baselines(comparison, condition)
    means = [
        standing.mean.mean for standing in rank_variants(comparison, condition) if standing.mean
    ]
    if not baselines or not means:
        return None
    sign = _sign(comparison)
    name = min(baselines, key=lambda baseline: sign * baselines[baseline])
    # a tie counts for the baseline: a model must be better than guessing
    return name if sign * baselines[name] <= min(sign * mean for mean in means) else None


COMPUTE: Mapping[str, Callable[[ComparisonCell], float | None]] = {
    "steps": lambda cell: 1.0,
    "seconds": lambda cell: cell.step_seconds,
    "FLOPs": lambda cell: cell.flops,
}
"""{unit of compute: what a step takes of it; of FLOPs, what a forward pass of a sample takes}"""


def measure_compute(comparison: Comparison, variant: Variant, unit: str) -> float | None:
    """Return what a training step of a variant takes, the mean of its cells; None if unknown."""
    costs = (COMPUTE[unit](cell) for cell in variant.cells)
    finite_costs = [cost for cost in costs if cost and isfinite(cost)]
    if not finite_costs:
        return None
    if unit != "FLOPs":
        return fmean(finite_costs)
    samples = StepSize.read(comparison.base, 1).total
    varies = any(axis.key.startswith(("data", "trainer")) for axis in comparison.axes)
    return PASSES * samples * fmean(finite_costs) if samples and not varies else None


def compare_at_equal_compute(comparison: Comparison) -> dict[str, dict[str, float]]:
    """Return {unit: {variant: validation metric}} at the least compute that any variant had.

    The metric is that of the last validation within the budget, a mean over seeds. A unit in which
    some variant is not known, or in which all take the same for a step, is left out, except steps.
    """
    metrics: dict[str, dict[str, float]] = {}
    for unit in COMPUTE:
        steps = {
            each_variant.name: measure_compute(comparison, each_variant, unit)
            for each_variant in comparison.variants
        }
        costs = {name: cost for name, cost in steps.items() if cost}
        if len(costs) < len(steps) or (unit != "steps" and len({*costs.values()}) == 1):
            continue
        totals = [
            costs[each_variant.name] * max(step for step, _ in cell.curve)
            for each_variant in comparison.variants
            for cell in each_variant.cells
            if cell.curve
        ]
        if not totals:
            continue
        for variant in comparison.variants:
            # the least that any cell used, so that every variant has a validation within it
            limit = min(totals) / costs[variant.name] * (1 + 1e-9)
            curves = [
                [value for step, value in cell.curve if step <= limit] for cell in variant.cells
            ]
            ends = [values[-1] for values in curves if values]
            finite_ends = [value for value in ends if value is not None and isfinite(value)]
            if finite_ends:
                metrics.setdefault(unit, {})[variant.name] = fmean(finite_ends)
    return metrics if len(metrics) > 1 else {}


def describe_analysis(comparison: Comparison) -> dict[str, Any]:
    """Return what the seeds tell under each condition as plain data, for results.json."""
    analyses = {}
    for condition in comparison.conditions:
        analysis = analyze_condition(comparison, condition)
        noise = analysis.noise
        variants = {
            standing.variant.name: {
                "verdict": standing.verdict,
                "mean": standing.mean and asdict(standing.mean),
                "difference": standing.difference and asdict(standing.difference),
                "p_value": standing.p_value,
                "permutation": _describe_permutation(
                    analysis.differences.get(standing.variant.name)
                ),
            }
            for standing in rank_variants(comparison, condition)
        }
        analyses[condition.name] = {
            "variants": variants,
            "may_be_best": [
                name
                for name, entry in variants.items()
                if entry["verdict"] in ("best", "possible", "unsure")
            ],
            "noise": asdict(noise),
            "smallest_difference": analysis.smallest_difference,
        }
    return analyses


def _describe_permutation(difference: Difference | None) -> dict[str, float] | None:
    """Return the p-value of the permutation test of a difference and the smallest possible one."""
    return asdict(difference.permutation) if difference and difference.permutation else None


def collect_values(variant: Variant, condition: Condition, measure: str) -> dict[int, float]:
    """Return {seed: value} of the cells that have a finite value."""
    values = {}
    for cell in variant.cells:
        # without `find`: a report asks for all values many times
        measured = cell.by_condition.get(condition.name)
        value = measured.metrics.get(measure) if measured else None
        if value is not None and isfinite(value):
            values[cell.seed] = value
    return values


def explain_missing(variant: Variant, condition: Condition, measure: str) -> tuple[str, ...]:
    """Explain why seeds of a variant have no finite value, each reason once.

    If all cells are refused only the first reason is given: the others differ only by their
    random draws.
    """
    if all(cell.find(condition).refused for cell in variant.cells):
        return tuple(_explain_cell(cell, condition, measure) for cell in variant.cells[:1])
    seeds: dict[str, list[str]] = {}
    for cell in variant.cells:
        if reason := _explain_cell(cell, condition, measure):
            seeds.setdefault(reason, []).append(str(cell.seed))

    texts = []
    for reason, numbers in seeds.items():
        word = "seed" if len(numbers) == 1 else "seeds"
        is_common = len(numbers) == len(variant.cells)
        texts.append(reason if is_common else f"{word} {', '.join(numbers)}: {reason}")
    return tuple(texts)


def _explain_cell(cell: ComparisonCell, condition: Condition, measure: str) -> str:
    measurement = cell.find(condition)
    if measure in measurement.metrics:
        value = measurement.metrics[measure]
        if value is None:
            return "no finite number"
        return "" if isfinite(value) else f"no finite number ({value})"
    if measurement.refused:
        return f"refused: {measurement.refused}"
    if cell.state == "failed":
        return f"failed: {cell.error}" if cell.error else "failed"
    return "not measured here" if cell.state == "done" else cell.state


def _build_standing(
    comparison: Comparison,
    variant: Variant,
    condition: Condition,
    by_seed: dict[int, float],
    compared: Difference | None,
    *,
    is_best: bool,
) -> Standing:
    mean, solved = estimate_variant(comparison, variant, by_seed)
    difference = compared.estimate if compared else None
    verdict: Verdict = "missing"
    if mean is not None:
        verdict = "best" if is_best else _judge(difference, _sign(comparison))
    dropped = _find_dropped(comparison, variant, condition)
    if dropped is not None:
        # the look decided; what it compared with need not be the first of all studies
        verdict, difference = "worse", None
    if verdict in ("possible", "worse") and list_steep(comparison):
        verdict = "unsure"
    return Standing(
        variant=variant,
        values=by_seed,
        mean=mean,
        difference=difference,
        p_value=dropped.p_value if dropped else compared.p_value if compared else None,
        verdict=verdict,
        missing_reasons=explain_missing(variant, condition, comparison.measure),
        dropped=dropped,
        solved=solved,
    )


def estimate_variant(
    comparison: Comparison, variant: Variant, own: Mapping[int, float]
) -> tuple[Estimate | None, SolvedCount | None]:
    """Estimate the mean of a variant under a condition.

    Args:
        comparison: The comparison.
        variant: The variant.
        own: {seed: its value}.

    Returns:
        The mean, None without a value, and how many seeds solved the task where they are split: the
        mean then has no interval.
    """
    if not own:
        return None, None
    mean = estimate_mean(tuple(own.values()), comparison.bounds)
    solved = count_solved(comparison, variant, own)
    if solved is None or not solved.is_split:
        return mean, None
    # Student's interval assumes one cluster of values, and here are two
    return replace(mean, low=None, high=None), solved


def _find_dropped(
    comparison: Comparison, variant: Variant, condition: Condition
) -> StoppedVariant | None:
    """Return the look that found a variant worse by this metric under this condition."""
    race = comparison.race
    if race is None or condition != comparison.trained or comparison.measure != race.measure:
        return None
    stopped = race.find_stopped(variant.name)
    return stopped if stopped is not None and not stopped.claim else None


def _judge(difference: Estimate | None, sign: int) -> Verdict:
    if difference is None or difference.low is None:
        return "unsure"
    if not excludes_zero(difference):
        return "possible"
    # better on the seeds that both have, though its mean is worse: it lacks easy seeds
    return "worse" if sign * difference.mean > 0 else "unsure"


def _sign(comparison: Comparison) -> int:
    """Return the factor that makes lower values better."""
    return -1 if comparison.better == "high" else 1


def choose_scale(standings: Sequence[Standing]) -> Scale:
    """Choose a scale for all variants but outliers, which would squeeze the others."""
    present = [standing for standing in standings if standing.mean]
    if not present:
        return Scale(0.0, 1.0)
    best = present[0].mean.mean if present[0].mean else 0.0
    distances = [
        max(abs(value - best) for value in standing.values.values()) for standing in present
    ]
    # a median, since the outliers that are looked for would raise a mean
    reach = FAR * median([distance for distance in distances if distance > 0] or [0.0])
    near = [
        standing
        for standing in present
        if standing.mean and abs(standing.mean.mean - best) <= reach
    ]

    dots: list[float] = []
    ends: list[float | None] = []
    for shown in near or present[:1]:
        dots += shown.values.values()
        ends += [shown.mean.low, shown.mean.high] if shown.mean else []
    # intervals may extend the axis by this much; longer ones are cut
    extension = MAX_EXTENSION * (max(dots) - min(dots))
    least, most = min(dots) - extension, max(dots) + extension
    clipped = [min(max(end, least), most) for end in ends if end is not None]
    low, high = min([*dots, *clipped]), max([*dots, *clipped])
    margin = MARGIN * (high - low) or 0.05 * abs(high) or 0.5
    return Scale(low - margin, high + margin)
