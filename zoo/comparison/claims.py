"""Claims of papers, judged by the studies of a comparison: verdict, power, room and flat curves.

A claim is judged after 3, 5, 8, 12 and 18 studies as far as they were planned, as racing does, so
that it may be looked at after every block.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from math import inf, sqrt
from statistics import fmean, median
from typing import Literal

from zoo.comparison.hypotheses import Hypothesis, parse_hypothesis
from zoo.comparison.looks import LOOKS, find_look
from zoo.comparison.racing import Claim, judge_claims
from zoo.comparison.ranking import collect_values, find_winning_baseline
from zoo.comparison.results import Comparison, ComparisonCell
from zoo.comparison.statistics import (
    FEWEST,
    LEVEL,
    POWER,
    Estimate,
    Pair,
    PairedMean,
    compare_pair,
    measure_noise,
)
from zoo.comparison.text import count_decimals, format_estimate
from zoo.packages import explain_imports
from zoo.reporting.numbers import format_fixed
from zoo.run.conditions import Condition

JudgedVerdict = Literal[
    "held",
    "reversed",
    "smaller than the paper's",
    "undecided",
    "not decidable here",
    "no evidence yet",
]
MOST_STUDIES = LOOKS[-1]
"""An effect that more studies are needed for is not decidable here."""
FLAT = 0.02
"""Largest change of the last validation, relative to the scale of the metric, of a flat curve."""


@dataclass(frozen=True, kw_only=True)
class JudgedClaim:
    """The verdict on a claim, and what it rests on.

    Attributes:
        hypothesis: The claim as a comparison states it.
        verdict: The verdict.
        reason: What the verdict rests on.
        studies: Number of studies that both variants have ended.
        estimate: How much better the first variant is, with its simultaneous interval.
        differences: The difference in each study, where they are too few for an interval.
        decimals: Decimals in which values of the comparison are written.
    """

    hypothesis: Hypothesis
    verdict: JudgedVerdict
    reason: str = ""
    studies: int = 0
    estimate: Estimate | None = None
    differences: tuple[float, ...] = ()
    decimals: int = 3

    @property
    def difference(self) -> str:
        """The difference as text, with its interval if it has one; empty without a study."""
        if self.estimate is not None:
            return format_estimate(self.estimate, self.decimals, sign=True)
        return ", ".join(format_fixed(one, self.decimals, sign=True) for one in self.differences)


def judge_claim(
    text: str,
    comparison: Comparison | None,
    *,
    margin: float = 0.0,
    family: int = 1,
    note: str = "",
) -> JudgedClaim:
    """Judge a claim by the studies of a comparison.

    Args:
        text: The hypothesis that states it; its first variant is the better one.
        comparison: The comparison; None if nothing is recorded.
        margin: The effect that a paper reports, in units of the metric; 0 if it gives no number.
        family: Number of hypotheses that intervals are corrected for.
        note: What the reason adds about how the claim came about.

    Raises:
        RecipeError: The text is no hypothesis.
    """
    hypothesis = parse_hypothesis(text)
    values = {} if comparison is None else collect_pair(comparison, hypothesis)
    shared = set.intersection(*(set(own) for own in values.values())) if values else set()
    if comparison is None or not shared:
        return JudgedClaim(hypothesis=hypothesis, verdict="no evidence yet")
    decimals, studies = count_decimals(comparison), len(shared)
    if reason := _explain_winner(comparison, hypothesis):
        return JudgedClaim(
            hypothesis=hypothesis, verdict="no evidence yet", reason=reason + note, studies=studies
        )

    late = "" if is_predicted(comparison, hypothesis) else ", no prediction: written after a run"
    late += note
    due = find_look(comparison.look_levels, studies)
    first, second = (values[name] for name in (hypothesis.one, hypothesis.other))
    sign = 1 if hypothesis.sign == ">" else -1
    differences = tuple(sign * (first[seed] - second[seed]) for seed in sorted(shared))
    if due is None:
        return JudgedClaim(
            hypothesis=hypothesis,
            verdict="undecided",
            reason=f"{studies} {'study' if studies == 1 else 'studies'}, no interval{late}",
            studies=studies,
            differences=differences,
            decimals=decimals,
        )

    # later studies wait for the next look: each look has its own share of the false alarms
    look, level = due
    kept = sorted(shared)[:look]
    seen = {name: {seed: own[seed] for seed in kept} for name, own in values.items()}
    has_metric = not hypothesis.metric or hypothesis.metric == comparison.measure.split("/")[-1]
    (decision,) = judge_claims(
        seen,
        [Claim(hypothesis.one, hypothesis.other, margin)],
        better="high" if hypothesis.sign == ">" else "low",
        bounds=comparison.bounds if has_metric else (-inf, inf),
        family=family,
        level=level,
    )
    verdict: JudgedVerdict = decision.verdict
    reason, estimate = f"after {look} studies{late}", decision.estimate
    if estimate is None:
        # both at the bound of the metric, say: an interval would have no width
        reason = f"{look} studies, which do not differ, so that their noise is unknown{late}"
    ceiling = _explain_ceiling(
        hypothesis, margin, comparison, seen[hypothesis.other].values(), decimals
    )
    if ceiling and verdict in ("undecided", "smaller than the paper's"):
        verdict, reason = "not decidable here", f"{ceiling}; {reason}"
    elif verdict == "undecided":
        power = find_power_of_studies(comparison, hypothesis, margin, family)
        if power and power.is_hopeless:
            verdict, reason = "not decidable here", power.text + late
    return JudgedClaim(
        hypothesis=hypothesis,
        verdict=verdict,
        reason=reason,
        studies=look,
        estimate=estimate,
        differences=differences[:1] if estimate is None else (),
        decimals=decimals,
    )


def _explain_winner(comparison: Comparison, found: Hypothesis) -> str:
    """Return which baseline no model beats where a hypothesis is judged; empty without one."""
    condition, metric = find_subject(comparison, found)
    if name := find_winning_baseline(comparison):
        return f"no model beats the baseline: {name}"
    if metric != comparison.measure:
        return ""
    name = find_winning_baseline(comparison, condition)
    return f"no model beats the baseline at {condition.name}: {name}" if name else ""


def _explain_ceiling(
    hypothesis: Hypothesis,
    margin: float,
    comparison: Comparison,
    values: Iterable[float],
    decimals: int,
) -> str:
    """Return why the metric has no room for the paper's effect; empty if it has.

    Args:
        hypothesis: The claim; it is about the compared metric, if it has a margin.
        margin: The effect of the paper.
        comparison: Its comparison.
        values: The values of the variant that the claim calls worse.
        decimals: Decimals in which values are written.
    """
    low, high = comparison.bounds
    mean = fmean(values)
    room = high - mean if hypothesis.sign == ">" else mean - low
    if not margin or room >= margin:
        return ""
    return (
        f"ceiling: `{hypothesis.other}` has {format_fixed(mean, decimals)}, which leaves "
        f"{format_fixed(room, decimals)} of the paper's {margin:g}"
    )


def is_predicted(comparison: Comparison, found: Hypothesis) -> bool:
    """Return whether a hypothesis was written before the first run of its comparison."""
    return any(
        one.text == found.text and not one.runs_ended and not one.withdrawn
        for one in comparison.hypotheses
    )


def collect_pair(comparison: Comparison, found: Hypothesis) -> dict[str, dict[int, float]]:
    """Return {variant: {seed: value}} of the two variants of a hypothesis; empty without values."""
    names = {one.name: one for one in comparison.variants}
    condition, metric = find_subject(comparison, found)
    values = {
        name: collect_values(names[name], condition, metric) for name in (found.one, found.other)
    }
    return values if all(values.values()) else {}


def find_subject(comparison: Comparison, found: Hypothesis) -> tuple[Condition, str]:
    """Return the condition and the metric that a hypothesis is about."""
    metric = f"test/{found.metric}" if found.metric else comparison.measure
    if not found.condition:
        return comparison.trained, metric
    # nothing is measured under a condition that no cell has been tested under
    known = {one.name: one for one in comparison.conditions}
    return known.get(found.condition, Condition(found.condition, "size")), metric


@dataclass(frozen=True)
class PowerOfStudies:
    """The number of studies that find an effect, and the power of the last look."""

    needed: int | None
    """Studies that find it with a probability of 80 %; None if a thousand do not."""
    last: int
    """The studies of the last look that is planned."""
    at_last: float
    """The probability that this look finds it."""

    @property
    def is_hopeless(self) -> bool:
        """True if the last look would miss it too often."""
        return self.needed is None or self.needed > max(self.last, MOST_STUDIES)

    @property
    def text(self) -> str:
        """The power in a sentence."""
        needed = "more than 1,000" if self.needed is None else f"{self.needed}"
        if self.is_hopeless:
            return (
                f"power of {self.last} studies {percent(self.at_last)}; {percent(POWER)} need "
                f"{needed}, by the noise of its studies"
            )
        return f"{needed} studies have a power of {percent(POWER)}, by the noise of its studies"


def find_power_of_studies(
    comparison: Comparison, hypothesis: Hypothesis, margin: float, family: int
) -> PowerOfStudies | None:
    """Return the power of studies for an effect; None without an effect or anything to go by.

    Args:
        comparison: The comparison, whose studies tell the noise.
        hypothesis: The claim.
        margin: The effect, in units of the metric.
        family: Number of hypotheses that intervals are corrected for.
    """
    deviation = _find_deviation(comparison, hypothesis)
    if not margin or deviation is None:
        return None
    planned = find_look(comparison.look_levels, len(comparison.seeds))
    if planned is None:
        return None
    last, level = planned
    powers = (
        find_power(number, margin, deviation, family, level) for number in range(FEWEST, 1001)
    )
    needed = next((n for n, power in enumerate(powers, start=FEWEST) if power >= POWER), None)
    return PowerOfStudies(needed, last, find_power(last, margin, deviation, family, level))


def _find_deviation(comparison: Comparison, found: Hypothesis) -> float | None:
    """Return the standard deviation of differences of a pair over studies; None if unknown.

    Few studies estimate that of one pair badly, so it is at least that of the median pair.
    """
    condition, metric = find_subject(comparison, found)
    every = {one.name: collect_values(one, condition, metric) for one in comparison.variants}
    values = {name: own for name, own in every.items() if len(own) >= FEWEST}
    if not {found.one, found.other} <= {*values}:
        return None
    noise = measure_noise(values)
    deviations = {}
    for pair in combinations(values, 2):
        mean = compare_pair(values, Pair(*pair), noise)
        if isinstance(mean, PairedMean):
            deviations[frozenset(pair)] = mean.error * sqrt(mean.count)
    own = deviations.get(frozenset((found.one, found.other)))
    return None if own is None else max(own, median(deviations.values()))


def find_power(
    studies: int, effect: float, deviation: float, family: int, level: float = LEVEL
) -> float:
    """Return the probability that a look finds an effect.

    Args:
        studies: The number of studies.
        effect: The true difference.
        deviation: The standard deviation of differences over studies.
        family: The number of hypotheses that intervals are corrected for.
        level: Probability that all intervals of the look hold.
    """
    if deviation == 0:
        return 1.0
    with explain_imports():
        from scipy import stats
    critical = stats.t.ppf(1 - (1 - level) / (2 * family), studies - 1)
    shift = effect * sqrt(studies) / deviation
    return float(stats.nct.sf(critical, studies - 1, shift))


def count_studies(comparison: Comparison) -> int:
    """Return how many studies have a tested trial of each variant that a race has not stopped."""
    race = comparison.race
    running = [
        one for one in comparison.variants if race is None or race.find_stopped(one.name) is None
    ]
    return min(len(collect_values(one, comparison.trained, comparison.measure)) for one in running)


def list_steep(comparison: Comparison) -> list[str]:
    """Return the variants whose curves are not flat at the end in most studies."""
    found = []
    for variant in comparison.variants:
        tested = [cell for cell in variant.cells if len(cell.curve) > 1 and cell.measurements]
        steep = [cell for cell in tested if not _is_flat(cell)]
        if 2 * len(steep) > len(tested):
            found.append(variant.name)
    return found


def _is_flat(cell: ComparisonCell) -> bool:
    """Return whether the last two validations that are kept hardly differ."""
    values = [value for _, value in cell.curve]
    finite = [value for value in values if value is not None]
    if len(finite) < len(values):
        return False
    sizes = [*map(abs, finite)]
    if finite[0] > finite[-1]:
        # a loss, which may begin below that of a guess
        sizes += cell.baselines.get("test/loss", {}).values()
    return abs(finite[-1] - finite[-2]) <= FLAT * max(sizes)


def percent(share: float) -> str:
    """Return a share from 0 to 1 in percent."""
    return f"{100 * share:.0f} %"
