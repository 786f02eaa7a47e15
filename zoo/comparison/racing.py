"""Stop training variants that are beaten, and claims that are decided, at planned looks.

The data are looked at after 3, 5, 8, 12 and 18 studies. Each look has a fifth of the 5 % of false
alarms (Bonferroni over looks; Pocock 1977 has narrower constants, which need equal steps), so that
all verdicts of all looks hold together with a probability of 95 %. A variant that is worse than the
best is not trained further (racing: Maron and Moore 1997; Birattari et al. 2002). A claim stops as
soon as its interval leaves out what it claims.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from statistics import fmean
from typing import Literal

import numpy as np

from zoo.comparison.results import Better, StepsToSolve
from zoo.comparison.statistics import (
    LEVEL,
    Difference,
    Estimate,
    Pair,
    Values,
    compare_all,
    compare_named,
    excludes_zero,
    measure_noise,
)

LOOKS = (3, 5, 8, 12, 18)
"""Numbers of finished studies after which the data are looked at."""
LOOK_LEVEL = 1 - (1 - LEVEL) / len(LOOKS)
SOLVED = 0.95
"""Validation accuracy from which a synthetic task counts as solved."""

ClaimVerdict = Literal["held", "reversed", "smaller than the paper's", "undecided"]


@dataclass(frozen=True)
class Claim:
    """A paper's claim that one variant is better than another by an effect."""

    one: str
    other: str
    effect: float = 0.0
    """By how much, in units of the metric and not below 0; 0 if the paper gives no number."""


@dataclass(frozen=True)
class ClaimDecision:
    """The verdict of the studies on a claim at a look."""

    claim: Claim
    verdict: ClaimVerdict
    estimate: Estimate | None
    """How much better `one` is than `other`, with its simultaneous interval."""
    reason: str


@dataclass(frozen=True)
class DroppedVariant:
    """A variant that is not trained further."""

    variant: str
    estimate: Estimate
    """How much worse it is than the best, with its simultaneous interval."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The decision of a look."""

    look: int
    """The number of finished studies; 0 if none of the planned looks is due."""
    best: str | None
    """The variant with the best mean of those that ran."""
    dropped: tuple[DroppedVariant, ...] = ()
    running: tuple[str, ...]
    """Variants that are trained further, the best included."""
    claims: tuple[ClaimDecision, ...] = ()

    @property
    def is_over(self) -> bool:
        """True if nothing is left to decide: one variant runs, or the last look has passed."""
        return len(self.running) < 2 or self.look == LOOKS[-1]


def decide(
    values: Values,
    running: Collection[str],
    claims: Sequence[Claim] = (),
    *,
    better: Better,
    bounds: tuple[float, float] = (-inf, inf),
    family: int | None = None,
) -> Decision:
    """Decide at a look which variants are dropped, and what is known of each claim.

    Call it after every study: between looks it decides nothing, and the promise holds only for
    decisions at looks.

    Args:
        values: {variant: {study: value}}, finite. Dropped variants keep those that they have.
        running: The variants that are still trained.
        claims: Those that are open.
        better: Whether high or low values are better.
        bounds: The range of the metric.
        family: How many claims there were at the first look; as many as are open by default.

    Returns:
        The decision. Its look is 0 if the studies that all running variants have are not as many
        as at a look.
    """
    own = {name: values[name] for name in values if name in running and values[name]}
    shared = set.intersection(*(set(found) for found in own.values())) if own else set()
    look = len(shared)
    # more looks than planned would raise more false alarms
    if look not in LOOKS:
        return Decision(look=0, best=None, running=tuple(own))

    sign = 1 if better == "high" else -1
    # studies that all of them have, so that no mean lacks a hard one
    ranked = {name: {study: own[name][study] for study in sorted(shared)} for name in own}
    best = max(ranked, key=lambda name: sign * fmean(ranked[name].values()))
    dropped = _drop_worse(ranked, best, sign, look, bounds)
    gone = {one.variant for one in dropped}
    return Decision(
        look=look,
        best=best,
        dropped=dropped,
        running=tuple(name for name in own if name not in gone),
        claims=tuple(
            judge_claims(
                values, claims, better=better, bounds=bounds, family=family, level=LOOK_LEVEL
            )
        ),
    )


def _drop_worse(
    ranked: Values, best: str, sign: int, look: int, bounds: tuple[float, float]
) -> tuple[DroppedVariant, ...]:
    found = compare_all(ranked, best, measure_noise(ranked), bounds, LOOK_LEVEL)
    dropped = []
    for name, difference in found.items():
        estimate = difference.estimate
        if excludes_zero(estimate) and sign * estimate.mean < 0:
            worse = _turn(estimate, -sign)
            reason = f"worse than `{best}` by {_show(worse)} after {look} studies"
            dropped.append(DroppedVariant(name, worse, reason))
    return tuple(dropped)


def judge_claims(
    values: Values,
    claims: Sequence[Claim],
    *,
    better: Better,
    bounds: tuple[float, float] = (-inf, inf),
    family: int | None = None,
    level: float = LEVEL,
) -> list[ClaimDecision]:
    """Judge claims by the studies that both of their variants have.

    A claim is held if the interval of the difference lies above 0 and reaches the paper's effect,
    smaller than the paper's if it lies below that effect without being reversed, and reversed if it
    lies below 0. Without an effect, held and reversed are what is left.

    Args:
        values: {variant: {study: value}}, finite.
        claims: What is claimed.
        better: Whether high or low values are better.
        bounds: The range of the metric.
        family: How many claims intervals are corrected for; as many as there are by default.
        level: Probability that all intervals hold their true differences.
    """
    sign = 1 if better == "high" else -1
    pairs = [Pair(one.one, one.other) for one in claims]
    noise = measure_noise({name: own for name, own in values.items() if own})
    size = max(family or 0, len(claims))
    found = compare_named(values, [*dict.fromkeys(pairs)], noise, bounds, family=size, level=level)
    return [
        _judge_claim(claim, found.get(pair), sign)
        for claim, pair in zip(claims, pairs, strict=True)
    ]


def _judge_claim(claim: Claim, found: Difference | None, sign: int) -> ClaimDecision:
    if found is None or found.estimate.low is None:
        return ClaimDecision(claim, "undecided", None, "fewer than three studies have both")
    gain = _turn(found.estimate, sign)
    low, high = gain.low or 0.0, gain.high or 0.0
    shown = f"the interval of the difference, {_show(gain)},"
    if high < 0:
        return ClaimDecision(claim, "reversed", gain, f"{shown} lies below 0")
    if claim.effect and high < claim.effect:
        reason = f"{shown} leaves out the paper's {claim.effect:g}"
        return ClaimDecision(claim, "smaller than the paper's", gain, reason)
    if low > 0:
        return ClaimDecision(claim, "held", gain, f"{shown} lies above 0")
    return ClaimDecision(claim, "undecided", gain, f"{shown} holds 0")


def _turn(found: Estimate, sign: int) -> Estimate:
    """Return a difference, or its opposite if the sign is -1."""
    if sign > 0 or found.low is None or found.high is None:
        return found
    return Estimate(-found.mean, -found.high, -found.low, found.count)


def _show(found: Estimate) -> str:
    return f"{found.mean:.3g} ({found.low:.3g} to {found.high:.3g})"


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
