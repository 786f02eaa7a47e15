"""When a task was solved, or a target reached: steps, censored where training ended before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb, isfinite
from statistics import fmean, median
from typing import Any

import numpy as np

from zoo.comparison.results import Better, Comparison, StepsToSolve, Variant
from zoo.comparison.statistics import LEVEL
from zoo.reporting.numbers import format_p_value
from zoo.reporting.sections import ReportSection, SectionTable

SOLVED = 0.95
"""Accuracy from which a synthetic task counts as solved."""
GAP = 0.1
"""How far seeds that do not solve a task lie below those that do, where seeds are split."""


def find_steps_to_solve(
    curve: Sequence[tuple[int, float]], threshold: float = SOLVED, better: Better = "high"
) -> StepsToSolve | None:
    """Find the first validation at a threshold in a learning curve.

    Args:
        curve: (step, validation metric) in order of steps.
        threshold: Value from which the task counts as solved.
        better: Whether high or low values are better.

    Returns:
        None if the curve is empty.
    """
    for step, value in curve:
        reached = value >= threshold if better == "high" else value <= threshold
        if isfinite(value) and reached:
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
        variant_steps[study].is_solved for variant_steps in (one, other) for study in shared
    ):
        return None
    samples = []
    for steps in (one, other):
        solved = [steps[study].steps for study in shared if steps[study].is_solved]
        censored = [steps[study].steps for study in shared if not steps[study].is_solved]
        samples.append(stats.CensoredData(uncensored=solved, right=censored))
    # 0 / 0 where nothing varies, as if all solve the task at the same validation
    with np.errstate(invalid="ignore", divide="ignore"):
        p_value = float(stats.logrank(*samples).pvalue)
    return p_value if isfinite(p_value) else 1.0


@dataclass(frozen=True)
class SolvedCount:
    """How many seeds of a variant solved a task under a condition."""

    solved: int
    seeds: int
    is_split: bool = False
    """True if some solved it and the others are far from it, so that intervals of the mean, which
    assume one kind of seeds, hold the true mean in 16 to 60 % of experiments only."""

    @property
    def excluded_rate(self) -> float:
        """The failure rate that so few failures exclude at 95 % (Clopper and Pearson 1934).

        Without a failure of n seeds, it is q of 1 - (1 - q)^n = 0.95: 0.63 of three seeds.
        """
        from scipy import special

        failed = self.seeds - self.solved
        return float(special.betaincinv(failed + 1, self.solved, LEVEL)) if self.solved else 1.0

    def __str__(self) -> str:
        return f"solved {self.solved} of {self.seeds}"


def count_solved(
    comparison: Comparison, variant: Variant, values: Mapping[int, float]
) -> SolvedCount | None:
    """Count the seeds whose value is that of a solved task.

    Args:
        comparison: The comparison.
        variant: The variant.
        values: {seed: its value under some condition}.

    Returns:
        None if the task is none that is solved or not, or the metric is a loss.
    """
    can_be_solved = any(cell.steps_to_solve is not None for cell in variant.cells)
    if comparison.target is not None or not can_be_solved or comparison.better != "high":
        return None
    solved = [value for value in values.values() if value >= SOLVED]
    unsolved = [value for value in values.values() if value < SOLVED]
    is_split = bool(solved and unsolved) and min(solved) - max(unsolved) > GAP
    return SolvedCount(len(solved), len(values), is_split)


@dataclass(frozen=True, kw_only=True)
class SolvingSpeed:
    """How soon a variant solved a task.

    Attributes:
        variant: Its name.
        steps: {seed: its steps to solve}.
        minutes: {seed: minutes of training until then} of the seeds that solved it.
        p_value: Of the log-rank test against the fastest variant, corrected for all pairs of
            variants (Bonferroni), as the data chose the fastest; None if there is no test.
    """

    variant: str
    steps: Mapping[int, StepsToSolve]
    minutes: Mapping[int, float]
    p_value: float | None = None

    @property
    def solved(self) -> int:
        """How many seeds solved the task."""
        return sum(steps.is_solved for steps in self.steps.values())

    @property
    def median(self) -> int | None:
        """The step by which half of the seeds had solved it; None if fewer did."""
        solved = sorted(steps.steps for steps in self.steps.values() if steps.is_solved)
        half = (len(self.steps) + 1) // 2
        return solved[half - 1] if len(solved) >= half else None

    @property
    def median_minutes(self) -> float | None:
        """The median of the minutes of the seeds that solved it; None if none did."""
        return median(self.minutes.values()) if self.minutes else None


def rank_speeds(comparison: Comparison) -> list[SolvingSpeed]:
    """Rank variants by how soon they solved a task, the fastest first.

    The order is that of the mean of steps, censored ones at the end of training (the restricted
    mean), as no median is there where fewer than half of the seeds solved the task.

    Returns:
        The variants with a finished seed; none if the task cannot be solved.
    """
    speeds = []
    for variant in comparison.variants:
        solving_steps = {
            cell.seed: cell.steps_to_solve
            for cell in variant.cells
            if cell.state == "done" and cell.steps_to_solve is not None
        }
        if solving_steps:
            minutes = {
                cell.seed: cell.minutes * solving_steps[cell.seed].steps / cell.steps
                for cell in variant.cells
                if cell.seed in solving_steps
                and solving_steps[cell.seed].is_solved
                and cell.minutes
                and cell.steps
            }
            speeds.append(SolvingSpeed(variant=variant.name, steps=solving_steps, minutes=minutes))
    speeds.sort(key=lambda candidate: fmean(steps.steps for steps in candidate.steps.values()))
    # of all pairs, since the data chose which variant is the fastest
    pairs = comb(len(speeds), 2)
    ranked = speeds[:1]
    for speed in speeds[1:]:
        p_value = compare_steps(speeds[0].steps, speed.steps)
        corrected = None if p_value is None else min(1.0, pairs * p_value)
        ranked.append(replace(speed, p_value=corrected))
    return ranked


def describe_speeds(comparison: Comparison) -> dict[str, Any]:
    """Return how soon each variant solved the task as plain data, for results.json."""
    described: dict[str, Any] = {}
    for speed in rank_speeds(comparison):
        entry = {"solved": speed.solved, "median": speed.median, "p_value": speed.p_value}
        described[speed.variant] = entry | (
            {} if comparison.target is None else {"minutes": speed.median_minutes}
        )
    return described


def list_speed_heads(comparison: Comparison) -> list[str]:
    """Return the heads of the table."""
    done, minutes = ("solved", []) if comparison.target is None else ("reached", ["minutes"])
    return ["variant", done, "median step", *minutes, "each seed", "p to the fastest"]


def list_speed_rows(comparison: Comparison) -> list[list[str]]:
    """Return a row for each variant; "> 3000" means not solved when training ended at 3000."""
    has_minutes = comparison.target is not None
    return [
        [
            speed.variant,
            f"{speed.solved} of {len(speed.steps)}",
            f"> {max(steps.steps for steps in speed.steps.values())}"
            if speed.median is None
            else f"{speed.median}",
            *([_format_minutes(speed.median_minutes)] if has_minutes else []),
            ", ".join(
                f"{steps.steps}" if steps.is_solved else f"> {steps.steps}"
                for _, steps in sorted(speed.steps.items())
            ),
            "" if speed.p_value is None else format_p_value(speed.p_value),
        ]
        for speed in rank_speeds(comparison)
    ]


def explain_speeds(comparison: Comparison) -> str:
    """Explain the table of steps to solve."""
    word = "study" if comparison.studies else "seed"
    lead = f"The first validation with an accuracy of {SOLVED:g}."
    if comparison.target is not None:
        lead = (
            f"The first validation whose monitored metric reached {comparison.target:g}, and the "
            f"median of the minutes of training until then, over those that reached it."
        )
    return (
        f"{lead} A {word} that did not reach it is "
        "censored: > 3000 means that training ended at step 3000 before. p: log-rank test against "
        "the fastest, corrected for all pairs of variants (Bonferroni); it takes samples as "
        "independent, which is conservative where a seed slows down all variants."
    )


def build_speeds_section(comparison: Comparison) -> ReportSection | None:
    """Return the steps to solve; None if the task cannot be solved."""
    rows = list_speed_rows(comparison)
    if not rows:
        return None
    heads = list_speed_heads(comparison)
    return ReportSection(
        key="solving",
        title="Steps to solve" if comparison.target is None else "Time to target",
        table=SectionTable(heads=heads, rows=rows, left=("variant", "each seed")),
        sentences=[explain_speeds(comparison)],
    )


def _format_minutes(minutes: float | None) -> str:
    return "" if minutes is None else f"{minutes:.2g}"
