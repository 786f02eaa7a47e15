"""Stop training variants that are beaten, and claims that are decided, at planned looks.

The data are looked at after 3, 5, 8, 12 and 18 studies, as far as they were planned. The looks
share the 5 % of false alarms (zoo/comparison/looks.py), so that all verdicts of all looks hold
together with a probability of 95 %. A variant that is worse than the best is not trained further
(racing: Maron and Moore 1997; Birattari et al. 2002), and one whose interval leaves out the effect
that was claimed of it is not either.

Decisions follow from the values of the studies alone: whoever has the finished cells of a
comparison takes them again, on any machine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import fmean
from typing import Literal

from zoo.comparison.hypotheses import find_condition, find_metric, parse_hypothesis
from zoo.comparison.looks import LOOKS, plan_looks
from zoo.comparison.ranking import collect_values
from zoo.comparison.results import (
    Better,
    Comparison,
    RaceLook,
    RaceResult,
    StoppedVariant,
    find_direction,
)
from zoo.comparison.statistics import (
    LEVEL,
    Difference,
    Estimate,
    Pair,
    Values,
    compare_all,
    compare_named,
    excludes_zero,
    explain_no_interval,
    measure_noise,
)
from zoo.comparison.studies import ALL_NON_FINITE
from zoo.run.conditions import Condition

ClaimVerdict = Literal["held", "reversed", "smaller than claimed", "undecided"]


@dataclass(frozen=True)
class Claim:
    """A paper's claim that one variant is better than another by an effect."""

    one: str
    other: str
    effect: float = 0.0
    """By how much, in units of the metric and not below 0; 0 if the paper gives no number."""
    text: str = ""
    """The hypothesis that states it, if one does."""


@dataclass(frozen=True)
class ClaimDecision:
    """The verdict of the studies on a claim."""

    claim: Claim
    verdict: ClaimVerdict
    estimate: Estimate | None
    """How much better `one` is than `other`, with its simultaneous interval."""
    reason: str
    p_value: float | None = None
    """p-value of a difference as large as the claimed effect, corrected for all claims."""

    @property
    def is_refuted(self) -> bool:
        """True if the interval leaves out an effect that was claimed."""
        return self.claim.effect > 0 and self.verdict in ("smaller than claimed", "reversed")


@dataclass(frozen=True)
class RacedClaim:
    """A claim with the values that it is about: of another metric or condition than the race's."""

    claim: Claim
    values: Values
    better: Better
    bounds: tuple[float, float] = (-inf, inf)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The decision of a look."""

    look: int
    """The number of finished studies."""
    best: str
    """The variant with the best mean of those that ran."""
    stopped: tuple[StoppedVariant, ...] = ()
    running: tuple[str, ...]
    """Variants that are trained further, the best included."""
    is_last: bool = False
    """Whether no further look is planned."""

    @property
    def is_over(self) -> bool:
        """True if nothing is left to decide: one variant runs, or the last look has passed."""
        return len(self.running) < 2 or self.is_last


def race(
    values: Values,
    *,
    better: Better,
    bounds: tuple[float, float] = (-inf, inf),
    finished: Mapping[str, Collection[int]] | None = None,
    claims: Sequence[RacedClaim] = (),
    family: int | None = None,
    levels: Mapping[int, float] | None = None,
    is_guarded: bool = True,
) -> list[Decision]:
    """Take the decisions of all looks that are due.

    Args:
        values: {variant: {study: value}}, finite.
        better: Whether high or low values are better.
        bounds: The range of the metric.
        finished: {variant: studies that have ended}, with a value or without one; by default those
            with a value.
        claims: The claims with an effect.
        family: How many claims intervals are corrected for; as many as there are by default.
        levels: The planned looks as `plan_looks` returns them; of 18 studies by default.
        is_guarded: As of `compare_all`.

    Returns:
        The decisions, up to the first look for which a running variant lacks a study.
    """
    ended = finished or {name: {*by_study} for name, by_study in values.items()}
    running: tuple[str, ...] = (*values,)
    size, decisions = max(family or 0, len(claims)), []
    looks = levels or plan_looks(LOOKS[-1:])
    for look, level in looks.items():
        if len(running) < 2 or any(not {*range(look)} <= {*ended[name]} for name in running):
            break
        # a claim about a variant that runs no further will not be told any better
        open_claims = [
            claim for claim in claims if {claim.claim.one, claim.claim.other} <= {*running}
        ]
        decision = decide(
            values,
            running,
            open_claims,
            look=look,
            level=level,
            better=better,
            bounds=bounds,
            family=size,
            is_guarded=is_guarded,
        )
        decision = replace(decision, is_last=look == max(looks))
        decisions.append(decision)
        running = decision.running
    return decisions


def decide(
    values: Values,
    running: Collection[str],
    claims: Sequence[RacedClaim] = (),
    *,
    look: int,
    level: float,
    better: Better,
    bounds: tuple[float, float] = (-inf, inf),
    family: int | None = None,
    is_guarded: bool = True,
) -> Decision:
    """Decide at a look which variants are not trained further.

    Args:
        values: {variant: {study: value}}, finite. Studies after the look are not read.
        running: The variants that are still trained.
        claims: Those that are open.
        look: The number of finished studies.
        level: Probability that all intervals of this look hold their true differences.
        better: Whether high or low values are better.
        bounds: The range of the metric.
        family: How many claims there were at the first look; as many as are open by default.
        is_guarded: As of `compare_all`.
    """
    sign = 1 if better == "high" else -1
    seen = _cut(values, look)
    running_values = {name: seen[name] for name in running if seen.get(name)}
    shared = (
        sorted(set.intersection(*(set(by_study) for by_study in running_values.values())))
        if running_values
        else []
    )
    # studies that all of them have, so that no mean lacks a hard one
    ranked = {
        name: {study: by_study[study] for study in shared}
        for name, by_study in running_values.items()
    }
    if not shared:
        return Decision(look=look, best="", running=(*running,))
    best = max(ranked, key=lambda name: sign * fmean(ranked[name].values()))
    stopped = [
        *_drop_worse(ranked, best, sign, look, level, bounds, is_guarded=is_guarded),
        *_stop_refuted(claims, look, level, max(family or 0, len(claims))),
    ]
    # reversed, so that the first reason to stop a variant stays
    gone = {variant.variant: variant for variant in reversed(stopped)}
    return Decision(
        look=look,
        best=best,
        stopped=tuple(gone[name] for name in running if name in gone),
        running=tuple(name for name in running if name not in gone),
    )


def _cut(values: Values, look: int) -> dict[str, dict[int, float]]:
    """Return the values of the studies before a look."""
    return {
        name: {study: value for study, value in by_study.items() if study < look}
        for name, by_study in values.items()
    }


def _drop_worse(
    ranked: Values,
    best: str,
    sign: int,
    look: int,
    level: float,
    bounds: tuple[float, float],
    *,
    is_guarded: bool,
) -> Iterator[StoppedVariant]:
    differences = compare_all(
        ranked, best, measure_noise(ranked), bounds, level, is_guarded=is_guarded
    )
    for name, difference in differences.items():
        estimate = difference.estimate
        if excludes_zero(estimate) and sign * estimate.mean < 0:
            yield _stop(name, look, best, _turn(estimate, sign), difference.p_value)


def _stop_refuted(
    claims: Sequence[RacedClaim], look: int, level: float, family: int
) -> Iterator[StoppedVariant]:
    """Yield the variants all of whose claims at this look are refuted."""
    decisions = [
        judge_claims(
            _cut(raced.values, look),
            [raced.claim],
            better=raced.better,
            bounds=raced.bounds,
            family=family,
            level=level,
        )[0]
        for raced in claims
    ]
    # a variant goes on for a claim that is still open, be it its own or one that it is compared in
    needed = {
        name
        for judged in decisions
        if not judged.is_refuted
        for name in (judged.claim.one, judged.claim.other)
    }
    for decision in decisions:
        claim = decision.claim
        if decision.is_refuted and decision.estimate is not None and claim.one not in needed:
            stopped = _stop(claim.one, look, claim.other, decision.estimate, decision.p_value)
            yield replace(stopped, claim=claim.text, effect=claim.effect)


def _stop(
    name: str, look: int, opponent: str, estimate: Estimate, p_value: float | None
) -> StoppedVariant:
    assert estimate.low is not None
    assert estimate.high is not None
    return StoppedVariant(
        variant=name,
        look=look,
        other=opponent,
        difference=estimate.mean,
        low=estimate.low,
        high=estimate.high,
        p_value=p_value,
    )


def find_race(comparison: Comparison) -> RaceResult:
    """Take the decisions of a race from the results of all studies.

    Args:
        comparison: The comparison as it was planned, with the cells of all studies.
    """
    measure, better = comparison.measure, comparison.better
    studies = {seed: study for study, seed in enumerate(comparison.seeds)}

    def collect(metric: str, condition: Condition) -> dict[str, dict[int, float]]:
        return {
            variant.name: {
                studies[seed]: value
                for seed, value in collect_values(variant, condition, metric).items()
            }
            for variant in comparison.variants
        }

    # those that came later may know what the studies say
    written = [entry for entry in comparison.hypotheses if not entry.runs_ended]
    claims = []
    for hypothesis in written:
        claim = parse_hypothesis(hypothesis.text)
        metric, condition = find_metric(comparison, claim), find_condition(comparison, claim)
        if not claim.margin or claim.sign == "=" or condition is None:
            continue
        direction = find_direction(metric.removeprefix("test/"))
        is_first = (claim.sign == ">") == (direction == "high")
        pair = (claim.one, claim.other) if is_first else (claim.other, claim.one)
        stated = Claim(*pair, claim.margin, claim.text)
        claims.append(RacedClaim(stated, collect(metric, condition), direction))

    decisions = race(
        collect(measure, comparison.trained),
        better=better,
        bounds=comparison.bounds,
        finished={
            variant.name: {
                studies[cell.seed]
                for cell in variant.cells
                if cell.state == "done" or cell.error == ALL_NON_FINITE
            }
            for variant in comparison.variants
        },
        claims=claims,
        family=len(written),
        levels=comparison.look_levels,
        # variants that version 0.3.0 stopped were not trained further, whatever would stop them now
        is_guarded=comparison.looks is not None,
    )
    levels = comparison.look_levels
    last_look = decisions[-1].look if decisions else min(levels, default=0)
    return RaceResult(
        measure=measure,
        level=levels.get(last_look, LEVEL),
        looks=tuple(
            RaceLook(studies=decision.look, best=decision.best, running=decision.running)
            for decision in decisions
        ),
        stopped=tuple(stopped for decision in decisions for stopped in decision.stopped),
        is_over=bool(decisions) and decisions[-1].is_over,
    )


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

    A claim is held if the interval of the difference lies above 0 and reaches the claimed effect,
    smaller than claimed if it lies below that effect without being reversed, and reversed if it
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
    pairs = [Pair(stated.one, stated.other) for stated in claims]
    noise = measure_noise({name: by_study for name, by_study in values.items() if by_study})
    size = max(family or 0, len(claims))
    differences = compare_named(
        values, [*dict.fromkeys(pairs)], noise, bounds, family=size, level=level
    )
    decisions = []
    for claim, pair in zip(claims, pairs, strict=True):
        decision = _judge_claim(claim, differences.get(pair), sign)
        margin = Pair(claim.one, claim.other, sign * claim.effect)
        # the interval is of the difference, the p-value of its distance from the claimed effect
        tested = compare_named(values, [margin], noise, bounds, family=size, level=level).get(
            margin
        )
        if decision.is_refuted and tested is not None and not excludes_zero(tested.estimate):
            # permutations do not confirm that the difference is below the effect
            reason = f"{decision.reason}, which permutations do not confirm"
            decision = replace(decision, verdict="undecided", reason=reason)
        decisions.append(replace(decision, p_value=tested.p_value if tested else None))
    return decisions


def _judge_claim(claim: Claim, difference: Difference | None, sign: int) -> ClaimDecision:
    if difference is None or difference.estimate.low is None:
        count = difference.estimate.count if difference else 0
        return ClaimDecision(claim, "undecided", None, explain_no_interval(count, "studies"))
    gain = _turn(difference.estimate, sign)
    low, high = gain.low or 0.0, gain.high or 0.0
    shown = f"the interval of the difference, {_show(gain)},"
    if high < 0:
        return ClaimDecision(claim, "reversed", gain, f"{shown} lies below 0")
    if claim.effect and high < claim.effect:
        reason = f"{shown} leaves out the claimed {claim.effect:g}"
        return ClaimDecision(claim, "smaller than claimed", gain, reason)
    if low > 0:
        return ClaimDecision(claim, "held", gain, f"{shown} lies above 0")
    return ClaimDecision(claim, "undecided", gain, f"{shown} holds 0")


def _turn(estimate: Estimate, sign: int) -> Estimate:
    """Return a difference, or its opposite if the sign is -1."""
    if sign > 0 or estimate.low is None or estimate.high is None:
        return estimate
    return Estimate(-estimate.mean, -estimate.high, -estimate.low, estimate.count)


def _show(estimate: Estimate) -> str:
    return f"{estimate.mean:.3g} ({estimate.low:.3g} to {estimate.high:.3g})"
