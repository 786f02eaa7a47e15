"""Numbers of a comparison as text: how many decimals they need, and means with intervals."""

from __future__ import annotations

from math import floor, log10

from zoo.comparison.ranking import collect_values
from zoo.comparison.results import Comparison
from zoo.comparison.solving import SolvedCount
from zoo.comparison.statistics import Estimate
from zoo.reporting.numbers import format_fixed

MAX_DECIMALS = 6


def count_decimals(comparison: Comparison) -> int:
    """Return how many decimals tell the means under each condition apart: three for 0.9125."""
    needed = 0
    for condition in comparison.conditions:
        values = (
            collect_values(variant, condition, comparison.measure).values()
            for variant in comparison.variants
        )
        means = [sum(by_seed) / len(by_seed) for by_seed in values if by_seed]
        largest = max(map(abs, means), default=0.0)
        gap = max(means, default=0.0) - min(means, default=0.0)
        # three significant digits, and three decimals from 0.1 to 10
        least = 3 if 0.1 <= largest < 10 or largest == 0 else 2 - floor(log10(largest))
        # two digits of the difference between the best and the worst
        close = -floor(log10(gap / 10)) if gap > 0 else 0
        # at most one digit more for nearly equal means: further ones would show noise
        needed = max(needed, least, min(close, least + 1))
    return min(max(needed, 0), MAX_DECIMALS)


def format_estimate(found: Estimate, decimals: int, *, sign: bool = False) -> str:
    """Format a mean with its interval, if it has one: 0.912 (0.905 to 0.919)."""
    mean = format_fixed(found.mean, decimals, sign=sign)
    if found.low is None:
        return mean
    low, high = (format_fixed(end, decimals, sign=sign) for end in (found.low, found.high))
    return f"{mean} ({low} to {high})"


def format_mean(mean: Estimate, solved: SolvedCount | None, decimals: int) -> str:
    """Format a mean with its interval; of split seeds, how many solved the task instead."""
    formatted = format_estimate(mean, decimals)
    return formatted if solved is None else f"{formatted} ({solved})"
