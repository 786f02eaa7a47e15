"""Claims about the variants of a comparison, judged by its seeds or studies.

The hypotheses of a comparison are its family: the intervals of those that were written before the
first run are corrected for their number, and those of later ones for all. A claim is judged at the
looks that were planned, by the noise of all variants.

A claim about another condition than the trained one is held only if two differences are on its
side: that under the condition, and that of the drops from the trained condition, seed by seed. A
variant that is better everywhere by the same amount does not hold at larger sizes what others lose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean
from typing import Literal

from zoo.comparison.hypotheses import Hypothesis, find_condition, find_metric, parse_hypothesis
from zoo.comparison.looks import LOOKS, find_look
from zoo.comparison.number_text import count_decimals, format_estimate
from zoo.comparison.racing import Claim, judge_claims
from zoo.comparison.ranking import average_baselines, collect_values, find_winning_baseline
from zoo.comparison.results import Comparison, RecordedHypothesis, StoppedVariant, find_direction
from zoo.comparison.solving import SolvedCount, count_solved
from zoo.comparison.statistics import (
    FEWEST,
    LEVEL,
    POWER,
    Estimate,
    Pair,
    PairedMean,
    Values,
    compare_equality,
    compare_pair,
    estimate_mean,
    find_smallest_named,
    measure_noise,
)
from zoo.comparison.training_end import explain_steep, list_steep
from zoo.packages import explain_imports
from zoo.reporting.numbers import format_fixed, format_number
from zoo.run.conditions import Condition
from zoo.suggestions import join_words

JudgedVerdict = Literal[
    "held",
    "reversed",
    "smaller than claimed",
    "equal within",
    "not equal",
    "undecided",
    "not decidable here",
    "our task cannot ask this",
    "not trained to the end",
    "no evidence yet",
]
DECISIVE = ("held", "reversed", "smaller than claimed", "equal within", "not equal")
"""The verdicts that say something about the variants."""
MOST_STUDIES = LOOKS[-1]
"""An effect that more studies are needed for is not decidable here."""
AFTER_RESULT = "written after the result"


@dataclass(frozen=True, kw_only=True)
class ClaimRoom:
    """Levels, baselines and headroom where a claim is judged.

    Attributes:
        trained: {variant of the claim: its mean under the trained condition}.
        trained_baseline: The best trivial baseline there, and its value; None if none is recorded.
        levels: {variant of the claim: its mean under the condition of the claim}.
        baseline: The best trivial baseline under the condition of the claim.
        headroom: How much better than the second variant another one can be at most, at the upper
            end of what the interval of its mean allows.
        steep: The variants of the comparison that were not trained to the end.
        solved: {variant of the claim: how many seeds solved the task}; empty if the task is none
            that is solved or not.
    """

    trained: Mapping[str, float]
    trained_baseline: tuple[str, float] | None
    levels: Mapping[str, float]
    baseline: tuple[str, float] | None
    headroom: float
    steep: tuple[str, ...]
    solved: Mapping[str, SolvedCount]


@dataclass(frozen=True, kw_only=True)
class JudgedClaim:
    """The verdict on a claim, and what it rests on.

    Attributes:
        hypothesis: The claim as a comparison states it.
        verdict: The verdict.
        reason: What the verdict rests on.
        studies: Number of seeds or studies that both variants have ended.
        estimate: How much better the first variant is, with its simultaneous interval.
        drop: The same of its drop from the trained condition; None at the trained condition.
        differences: The difference in each seed, where they are too few for an interval.
        decimals: Decimals in which values of the comparison are written.
        p_value: Of a difference as large as the claimed one, corrected; None without an interval.
        smallest: The difference that so many seeds find with a probability of 80 %; None where
            their noise is unknown.
        room: What the task leaves to be found; None without values.
        recorded: The hypothesis in the record; None if it has none.
    """

    hypothesis: Hypothesis
    verdict: JudgedVerdict
    reason: str = ""
    studies: int = 0
    estimate: Estimate | None = None
    drop: Estimate | None = None
    differences: tuple[float, ...] = ()
    decimals: int = 3
    p_value: float | None = None
    smallest: float | None = None
    room: ClaimRoom | None = None
    recorded: RecordedHypothesis | None = None

    @property
    def difference(self) -> str:
        """The difference as text, with its interval if it has one; empty without a study."""
        if self.estimate is not None:
            return format_estimate(self.estimate, self.decimals, sign=True)
        return ", ".join(
            format_fixed(difference, self.decimals, sign=True) for difference in self.differences
        )

    @property
    def power(self) -> str:
        """The difference that could have been found, as text."""
        if self.smallest is None:
            return "unknown: too few values, or no spread"
        return format_number(self.smallest, 2)

    @property
    def explanation(self) -> str:
        """The reason of the verdict; where it decides nothing, with the power."""
        if self.verdict in DECISIVE or not self.studies:
            return self.reason
        if self.smallest is None:
            return f"{self.reason}; power unknown"
        return f"{self.reason}; {percent(POWER)} power for a difference of {self.power}"


def judge_comparison(comparison: Comparison) -> tuple[JudgedClaim, ...]:
    """Judge all hypotheses of a comparison, those that were withdrawn too."""
    return tuple(
        judge_claim(hypothesis.text, comparison, family=count_family(comparison, hypothesis.text))
        for hypothesis in comparison.hypotheses
    )


def count_family(comparison: Comparison, text: str) -> int:
    """Return how many hypotheses the interval of one is corrected for.

    A later hypothesis cannot widen the intervals of those that were written before the first run.
    Those that were withdrawn count: leaving a lost one out must not narrow the others.
    """
    predicted = [
        hypothesis.text for hypothesis in comparison.hypotheses if not hypothesis.runs_ended
    ]
    if text in predicted:
        return len(predicted)
    return len({*(hypothesis.text for hypothesis in comparison.hypotheses), text})


def judge_claim(
    text: str,
    comparison: Comparison | None,
    *,
    effect: float = 0.0,
    family: int = 1,
    note: str = "",
) -> JudgedClaim:
    """Judge a claim by the seeds or studies of a comparison.

    Args:
        text: The hypothesis that states it; its first variant is the better one.
        comparison: The comparison; None if nothing is recorded.
        effect: The effect that a paper reports, in units of the metric; 0 if it gives no number.
            A margin of the hypothesis itself has to be exceeded.
        family: Number of hypotheses that intervals are corrected for.
        note: What the reason adds about how the claim came about.

    Raises:
        RecipeError: The text is no hypothesis.
    """
    hypothesis = parse_hypothesis(text)
    if comparison is None:
        return JudgedClaim(hypothesis=hypothesis, verdict="no evidence yet")
    recorded = next(
        (candidate for candidate in comparison.hypotheses if candidate.text == hypothesis.text),
        None,
    )
    if condition := find_condition(comparison, hypothesis):
        judged = _judge_at(hypothesis, comparison, condition, effect, family, recorded)
    else:
        reason = f"not measured at {hypothesis.condition}"
        judged = JudgedClaim(hypothesis=hypothesis, verdict="no evidence yet", reason=reason)
    notes = [judged.reason, *list_notes(recorded), note]
    return replace(judged, recorded=recorded, reason=", ".join(filter(None, notes)))


def list_notes(recorded: RecordedHypothesis | None) -> list[str]:
    """List what speaks against a hypothesis as a prediction."""
    if recorded is None:
        return [AFTER_RESULT]
    notes = []
    if recorded.runs_ended:
        runs = f"after {recorded.runs_ended} runs had ended"
        notes.append(f"{AFTER_RESULT}: {runs}, so no prediction")
    if recorded.withdrawn:
        notes.append(f"withdrawn {recorded.withdrawn}")
    return notes


def _judge_at(
    hypothesis: Hypothesis,
    comparison: Comparison,
    condition: Condition,
    effect: float,
    family: int,
    recorded: RecordedHypothesis | None,
) -> JudgedClaim:
    """Judge a claim under a condition, without notes on how it came about."""
    metric = find_metric(comparison, hypothesis)
    # baselines, decimals and bounds are those of the metric of the claim
    compared = replace(
        comparison, measure=metric, better=find_direction(metric.removeprefix("test/"))
    )
    pair = (hypothesis.one, hypothesis.other)
    all_values = {
        variant.name: collect_values(variant, condition, metric) for variant in compared.variants
    }
    missing = [name for name in pair if not all_values.get(name)]
    shared = [] if missing else sorted(all_values[pair[0]].keys() & all_values[pair[1]].keys())
    judged = JudgedClaim(hypothesis=hypothesis, verdict="no evidence yet")
    if not shared:
        names = join_words([f"`{name}`" for name in missing or pair])
        return replace(judged, reason=f"no value of {names}" if missing else "no seed in common")

    stopped = _find_refuted(comparison, hypothesis)
    look, level = find_look(comparison.look_levels, stopped.look if stopped else len(shared)) or (
        len(shared),
        None,
    )
    # later studies wait for the next look: each look has its own share of the false alarms
    judged_seeds = {*shared[:look]}
    values = {
        name: {seed: by_seed[seed] for seed in by_seed if seed in judged_seeds}
        for name, by_seed in all_values.items()
        if judged_seeds & by_seed.keys()
    }
    claimed = effect or hypothesis.margin
    room = find_room(compared, hypothesis, condition, judged_seeds)
    judged = replace(judged, studies=look, decimals=count_decimals(compared), room=room)
    without_verdict = judged
    judged = _judge_values(judged, values, compared, claimed, family, level, shared)
    if reason := _explain_baseline(compared, condition, room):
        return replace(without_verdict, reason=reason, smallest=judged.smallest)
    if stopped is not None and judged.estimate is not None and judged.verdict != "reversed":
        judged = replace(
            judged,
            verdict="smaller than claimed",
            reason=f"decided after {_count(comparison, look)}",
        )
    elif condition != comparison.trained and judged.verdict in ("held", "reversed"):
        assert level is not None
        judged = _require_drop(judged, values, compared, family, level)
    return _limit(judged, compared, claimed, family, recorded)


def _judge_values(
    judged: JudgedClaim,
    values: Values,
    compared: Comparison,
    claimed: float,
    family: int,
    level: float | None,
    shared: Sequence[int],
) -> JudgedClaim:
    """Judge the difference under the condition of a claim."""
    hypothesis, look = judged.hypothesis, judged.studies
    sign = -1 if hypothesis.sign == "<" else 1
    first_values, second_values = values[hypothesis.one], values[hypothesis.other]
    differences = tuple(sign * (first_values[seed] - second_values[seed]) for seed in shared[:look])
    if level is None:
        reason = f"{_count(compared, look)}, no interval"
        return replace(judged, verdict="undecided", reason=reason, differences=differences)

    noise = measure_noise(values)
    mean = compare_pair(values, Pair(hypothesis.one, hypothesis.other), noise)
    if not isinstance(mean, PairedMean):
        # both at the bound of the metric, say: an interval would have no width
        reason = f"{_count(compared, look)}, which do not differ, so that their noise is unknown"
        return replace(judged, verdict="undecided", reason=reason, differences=differences[:1])
    smallest = find_smallest_named(mean, family, level)
    reason = f"after {_count(compared, look)}"
    if hypothesis.sign == "=":
        margin = Pair(hypothesis.one, hypothesis.other, claimed)
        equality = compare_equality(values, margin, noise, family=family, level=level)
        assert equality is not None
        equal: JudgedVerdict = "not equal" if equality.is_different else "undecided"
        return replace(
            judged,
            verdict="equal within" if equality.is_equal else equal,
            reason=f"{reason}, two one-sided tests within {claimed:g}",
            estimate=equality.estimate,
            smallest=smallest,
        )
    (decision,) = judge_claims(
        values,
        [Claim(hypothesis.one, hypothesis.other, claimed)],
        better="high" if hypothesis.sign == ">" else "low",
        bounds=compared.bounds,
        family=family,
        level=level,
    )
    verdict: JudgedVerdict = decision.verdict
    low = decision.estimate and decision.estimate.low
    if verdict == "held" and hypothesis.margin and (low or 0.0) <= hypothesis.margin:
        verdict = "undecided"
    return replace(
        judged,
        verdict=verdict,
        reason=reason,
        estimate=decision.estimate,
        p_value=decision.p_value,
        smallest=smallest,
    )


def _require_drop(
    judged: JudgedClaim, values: Values, compared: Comparison, family: int, level: float
) -> JudgedClaim:
    """Require that the drops from the trained condition differ on the same side."""
    hypothesis = judged.hypothesis
    trained = {
        variant.name: collect_values(variant, compared.trained, compared.measure)
        for variant in compared.variants
    }
    drops = {
        name: {
            seed: by_seed[seed] - trained[name][seed] for seed in by_seed if seed in trained[name]
        }
        for name, by_seed in values.items()
    }
    (decision,) = judge_claims(
        {name: by_seed for name, by_seed in drops.items() if by_seed},
        [Claim(hypothesis.one, hypothesis.other)],
        better="high" if hypothesis.sign == ">" else "low",
        family=family,
        level=level,
    )
    judged = replace(judged, drop=decision.estimate)
    shown = (
        "unknown"
        if decision.estimate is None
        else format_estimate(decision.estimate, judged.decimals, sign=True)
    )
    where = compared.trained.describe()
    if decision.verdict == judged.verdict:
        return replace(judged, reason=f"{judged.reason}, by the drop from {where} too: {shown}")
    return replace(
        judged,
        verdict="undecided",
        reason=f"{judged.reason}: `{hypothesis.one}` is "
        f"{'better' if judged.verdict == 'held' else 'worse'} there, but the drops from {where} "
        f"do not differ so: {shown}",
    )


def _limit(
    judged: JudgedClaim,
    compared: Comparison,
    claimed: float,
    family: int,
    recorded: RecordedHypothesis | None,
) -> JudgedClaim:
    """Take back what task, training or the time of writing cannot carry."""
    hypothesis, room = judged.hypothesis, judged.room
    assert room is not None
    # only a difference that was not found can be missing for lack of room
    is_absence = judged.verdict in ("undecided", "smaller than claimed", "equal within")
    lack = _explain_headroom(hypothesis, room, claimed, judged.decimals)
    # in this order: what was known before the run outranks what its results show
    if recorded is not None and recorded.cannot_ask:
        reason = f"by the pilot: {recorded.cannot_ask}; {judged.reason}"
        judged = replace(judged, verdict="our task cannot ask this", reason=reason)
    elif is_absence and lack:
        reason = f"{lack}; {judged.reason}"
        judged = replace(judged, verdict="our task cannot ask this", reason=reason)
    elif room.steep:
        reason = f"{explain_steep(compared)}; {judged.reason}"
        judged = replace(judged, verdict="not trained to the end", reason=reason)
    elif hypothesis.sign == "=" and (recorded is None or recorded.runs_ended):
        reason = f"its margin was {AFTER_RESULT}; {judged.reason}"
        judged = replace(judged, verdict="undecided", reason=reason)
    elif judged.verdict == "undecided" and hypothesis.sign != "=":
        power = find_power_of_studies(compared, judged, claimed, family)
        if power and power.is_hopeless:
            judged = replace(judged, verdict="not decidable here", reason=power.text)
    solved = room.solved.get(hypothesis.other)
    if is_absence and solved is not None and solved.solved == solved.seeds:
        rate = format_fixed(solved.excluded_rate, 2)
        reason = (
            f"{judged.reason}; `{hypothesis.other}` {solved}, which excludes a failure rate of "
            f"{rate} or more"
        )
        judged = replace(judged, reason=reason)
    return judged


def _explain_headroom(
    hypothesis: Hypothesis, room: ClaimRoom, claimed: float, decimals: int
) -> str:
    """Return why no variant could be better by what is claimed; empty if one could."""
    if room.headroom >= claimed and room.headroom > 0:
        return ""
    level, left = (
        format_fixed(value, decimals) for value in (room.levels[hypothesis.other], room.headroom)
    )
    effect = f" of the claimed {claimed:g}" if claimed else ""
    return f"`{hypothesis.other}` has {level}, which leaves {left}{effect}"


def explain_missing_room(
    compared: Comparison,
    hypothesis: Hypothesis,
    condition: Condition,
    room: ClaimRoom,
    claimed: float,
) -> str:
    """Return why a task cannot ask a claim; empty if it can.

    Args:
        compared: The comparison, by the metric of the claim.
        hypothesis: The claim.
        condition: The condition of the claim.
        room: What `find_room` returned for them.
        claimed: The claimed effect, in units of the metric.
    """
    lack = _explain_headroom(hypothesis, room, claimed, count_decimals(compared))
    return lack or _explain_baseline(compared, condition, room)


def find_room(
    compared: Comparison, hypothesis: Hypothesis, condition: Condition, kept: set[int]
) -> ClaimRoom:
    """Return what a task leaves to be found where a claim is judged.

    Args:
        compared: The comparison, by the metric of the claim.
        hypothesis: The claim.
        condition: The condition of the claim.
        kept: The seeds that judge it.
    """
    names = {variant.name: variant for variant in compared.variants}
    # a pilot may lack the first variant
    variants = [names[name] for name in (hypothesis.one, hypothesis.other) if name in names]

    def collect(where: Condition) -> dict[str, dict[int, float]]:
        return {
            variant.name: {
                seed: value
                for seed, value in collect_values(variant, where, compared.measure).items()
                if seed in kept
            }
            for variant in variants
        }

    trained, there = collect(compared.trained), collect(condition)
    solved = {
        variant.name: count_solved(compared, variant, there[variant.name]) for variant in variants
    }
    level = estimate_mean(tuple(there[hypothesis.other].values()), compared.bounds)
    low, high = compared.bounds
    # the end of the interval that leaves more room: only certainty of none takes back a claim
    if hypothesis.sign == ">" or (hypothesis.sign == "=" and compared.better == "high"):
        headroom = high - (level.mean if level.low is None else level.low)
    else:
        headroom = (level.mean if level.high is None else level.high) - low
    return ClaimRoom(
        trained={name: fmean(by_seed.values()) for name, by_seed in trained.items() if by_seed},
        trained_baseline=_find_best_baseline(compared, compared.trained),
        levels={name: fmean(by_seed.values()) for name, by_seed in there.items() if by_seed},
        baseline=_find_best_baseline(compared, condition),
        headroom=headroom,
        steep=tuple(list_steep(compared)),
        solved={
            name: solved_count for name, solved_count in solved.items() if solved_count is not None
        },
    )


def _find_best_baseline(compared: Comparison, condition: Condition) -> tuple[str, float] | None:
    baselines = average_baselines(compared, condition)
    pick = max if compared.better == "high" else min
    return pick(baselines.items(), key=lambda pair: pair[1], default=None)


def _explain_baseline(compared: Comparison, condition: Condition, room: ClaimRoom) -> str:
    """Return which baseline is not beaten where a claim is judged; empty if all are."""
    for where in dict.fromkeys((compared.trained, condition)):
        at = "" if where == compared.trained else f" at {where.name}"
        if name := find_winning_baseline(compared, where):
            return f"no model beats the baseline{at}: {name}"
    for at, baseline, levels in (
        ("", room.trained_baseline, room.trained),
        (f" at {condition.name}", room.baseline, room.levels),
    ):
        if baseline is None or not levels:
            continue
        name, value = baseline
        sign = 1 if compared.better == "high" else -1
        # a tie counts for the baseline: a model must be better than guessing
        if all(sign * level <= sign * value for level in levels.values()):
            return f"neither variant beats the baseline{at}: {name}"
    return ""


def _find_refuted(comparison: Comparison, hypothesis: Hypothesis) -> StoppedVariant | None:
    """Return the look of a race that left out the effect of a claim."""
    stopped = comparison.race.stopped if comparison.race else ()
    return next((variant for variant in stopped if variant.claim == hypothesis.text), None)


def _count(comparison: Comparison, number: int) -> str:
    """Return a number of seeds or studies as text."""
    singular, plural = ("study", "studies") if comparison.studies else ("seed", "seeds")
    return f"{number} {singular if number == 1 else plural}"


@dataclass(frozen=True)
class PowerOfStudies:
    """The number of studies that find an effect, and the power of the last look."""

    needed: int | None
    """Studies that find it with a probability of 80 %; None if a thousand do not."""
    last: int
    """The studies of the last look that is planned."""
    at_last: float
    """The probability that this look finds it."""
    unit: str
    """What they are: seeds or studies."""

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
                f"power of {self.last} {self.unit} {percent(self.at_last)}; {percent(POWER)} need "
                f"{needed}, by their noise"
            )
        return f"{needed} {self.unit} have a power of {percent(POWER)}, by their noise"


def find_power_of_studies(
    comparison: Comparison, judged: JudgedClaim, effect: float, family: int
) -> PowerOfStudies | None:
    """Return the power of studies for an effect; None without an effect or anything to go by.

    Args:
        comparison: The comparison, by the metric of the claim.
        judged: The claim with its difference.
        effect: The effect, in units of the metric.
        family: Number of hypotheses that intervals are corrected for.
    """
    planned = find_look(comparison.look_levels, len(comparison.seeds))
    hypothesis = judged.hypothesis
    condition = find_condition(comparison, hypothesis)
    if not effect or planned is None or condition is None:
        return None
    all_values = {
        variant.name: collect_values(variant, condition, comparison.measure)
        for variant in comparison.variants
    }
    values = {name: by_seed for name, by_seed in all_values.items() if by_seed}
    mean = compare_pair(values, Pair(hypothesis.one, hypothesis.other), measure_noise(values))
    if not isinstance(mean, PairedMean):
        return None
    # of one study, since the number of studies varies below
    deviation = mean.error * sqrt(mean.count)
    last_look, level = planned
    powers = (
        find_power(number, effect, deviation, family, level) for number in range(FEWEST, 1001)
    )
    needed = next((n for n, power in enumerate(powers, start=FEWEST) if power >= POWER), None)
    unit = "studies" if comparison.studies else "seeds"
    return PowerOfStudies(
        needed, last_look, find_power(last_look, effect, deviation, family, level), unit
    )


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
        variant
        for variant in comparison.variants
        if race is None or race.find_stopped(variant.name) is None
    ]
    return min(
        len(collect_values(variant, comparison.trained, comparison.measure)) for variant in running
    )


def percent(share: float) -> str:
    """Return a share from 0 to 1 in percent."""
    return f"{100 * share:.0f} %"
