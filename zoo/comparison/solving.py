"""When a synthetic task was solved: steps, censored where training ended before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

import numpy as np

from zoo.comparison.results import StepsToSolve

SOLVED = 0.95
"""Validation accuracy from which a synthetic task counts as solved."""


def find_steps_to_solve(
    curve: Sequence[tuple[int, float]], threshold: float = SOLVED
) -> StepsToSolve | None:
    """Find the first validation at a threshold in a learning curve.

    Args:
        curve: (step, validation accuracy) in order of steps.
        threshold: Accuracy from which the task counts as solved.

    Returns:
        None if the curve is empty.
    """
    for step, value in curve:
        if isfinite(value) and value >= threshold:
            return StepsToSolve(step, True)
    return StepsToSolve(curve[-1][0], False) if curve else None


def compare_steps(
    one: Mapping[int, StepsToSolve], other: Mapping[int, StepsToSolve]
) -> float | None:
    """Test whether two variants need the same number of steps, by the log-rank test (Mantel 1966).

    The test takes the two samples as independent. Studies that slow down or speed up both variants
    together make it conservative; a paired test for censored data would need more studies.

    Args:
        one: {study: steps to solve}.
        other: The same of the other variant. Only studies that both have count.

    Returns:
        The two-sided p-value; None if both solved nothing or share fewer than three studies.
    """
    # scipy.stats takes long to import
    from scipy import stats

    shared = sorted(one.keys() & other.keys())
    if len(shared) < 3 or not any(
        found[study].is_solved for found in (one, other) for study in shared
    ):
        return None
    samples = []
    for found in (one, other):
        solved = [found[study].steps for study in shared if found[study].is_solved]
        censored = [found[study].steps for study in shared if not found[study].is_solved]
        samples.append(stats.CensoredData(uncensored=solved, right=censored))
    # 0 / 0 where nothing varies, as if all solve the task at the same validation
    with np.errstate(invalid="ignore", divide="ignore"):
        p_value = float(stats.logrank(*samples).pvalue)
    return p_value if isfinite(p_value) else 1.0
