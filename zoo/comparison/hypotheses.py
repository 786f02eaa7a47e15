"""Hypotheses of a comparison: written before anything is trained, judged by corrected intervals.

They are kept in a file of the output folder, with the time at which each was written and the
number of runs that had ended by then. A hypothesis that comes later, or is left out later, is
marked as late or withdrawn in every report.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args

from zoo.comparison.digests import EDITED, is_unchanged, seal
from zoo.comparison.ranking import collect_values, find_level
from zoo.comparison.results import Comparison, Measure, RecordedHypothesis, find_direction
from zoo.comparison.statistics import (
    Estimate,
    Pair,
    compare_named,
    excludes_zero,
    explain_no_interval,
    measure_noise,
)
from zoo.config import Recipe
from zoo.config.schema import format_size
from zoo.errors import ARGUMENT, ConfigIssue, DataError, Message, OptionError, RecipeError, Setting
from zoo.options.stored import read_stored
from zoo.reporting.numbers import format_fixed
from zoo.reporting.sections import ReportSection, SectionTable
from zoo.run.build import build_data
from zoo.run.conditions import TRAINED, Condition, list_conditions
from zoo.suggestions import nearest
from zoo.utils import format_now, write_json

log = logging.getLogger("zoo")

HYPOTHESES = "hypotheses.json"
DECIMALS = 4
FORM = re.compile(
    r"(?P<one>.+?)\s+(?P<sign>[<>])\s+(?P<other>.+?)(?:\s+by\s+(?P<margin>\d[\d.]*))?"
    r"(?:\s+on\s+(?:test/)?(?P<metric>\w+))?(?:\s+at\s+(?P<condition>.+))?"
)
EXAMPLE = Message(
    "write ", Setting("hypotheses", ["rope > none", "rope > none by 0.01 on accuracy at 256"])
)

HypothesisVerdict = Literal["held", "not held", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """A claim: the metric of one variant is above or below that of another by a margin or more."""

    text: str
    one: str
    sign: Literal["<", ">"]
    other: str
    margin: float
    metric: str
    """Empty for the compared one."""
    condition: str
    """Empty for the training size."""


@dataclass(frozen=True, kw_only=True)
class HypothesesFile:
    """The content of hypotheses.json.

    Attributes:
        hypotheses: The hypotheses.
        sha256: The SHA-256 of the others; empty in files of zoo 0.3.
    """

    hypotheses: tuple[RecordedHypothesis, ...]
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The verdict on a hypothesis, with the difference over seeds that decided it."""

    hypothesis: RecordedHypothesis
    verdict: HypothesisVerdict
    difference: Estimate | None
    """First variant minus second, less the margin, with its simultaneous interval."""
    p_value: float | None
    """Corrected for all hypotheses."""
    reason: str
    """Why it is undecided."""

    @classmethod
    def undecided(cls, hypothesis: RecordedHypothesis, reason: str) -> Self:
        """Return a judgement without a verdict."""
        return cls(
            hypothesis=hypothesis, verdict="undecided", difference=None, p_value=None, reason=reason
        )


def parse_hypothesis(text: str) -> Hypothesis:
    """Return a hypothesis. Raises RecipeError if the text is none."""
    found = FORM.fullmatch(text.strip())
    try:
        margin = float((found and found["margin"]) or 0)
    except ValueError:
        found = None
    if found is None:
        raise _refuse(f"{text!r} is no hypothesis", EXAMPLE)
    return Hypothesis(
        text=" ".join(text.split()),
        one=found["one"],
        sign=">" if found["sign"] == ">" else "<",
        other=found["other"],
        margin=margin,
        metric=found["metric"] or "",
        condition=found["condition"] or "",
    )


def check_hypotheses(texts: Sequence[str], names: Sequence[str], recipe: Recipe) -> None:
    """Raise RecipeError for all hypotheses about unknown variants, metrics or conditions."""
    issues: list[ConfigIssue] = []
    conditions = list_planned_conditions(recipe)
    for text in texts:
        try:
            found = parse_hypothesis(text)
        except RecipeError as error:
            issues += error.issues
            continue
        known = {
            "variant": ((found.one, found.other), names),
            "metric": ((found.metric,), get_args(Measure)),
            "condition": ((found.condition,), conditions),
        }
        for kind, (words, allowed) in known.items():
            for word in words:
                if word and word not in allowed:
                    problem = f"{text!r}: there is no {kind} {word!r} here"
                    issues.append(
                        ConfigIssue(ARGUMENT, "hypotheses", problem, nearest(word, allowed))
                    )
        if found.one == found.other:
            problem = f"{text!r}: compares a variant with itself"
            issues.append(ConfigIssue(ARGUMENT, "hypotheses", problem, EXAMPLE))
    if len({" ".join(text.split()) for text in texts}) < len(texts):
        issues.append(ConfigIssue(ARGUMENT, "hypotheses", "one is listed twice", "list it once"))
    if issues:
        raise RecipeError(*issues)


def check_question(question: str, recipe: Recipe) -> None:
    """Raise RecipeError if a recipe has no condition of the name that is asked about."""
    conditions = [TRAINED, *list_planned_conditions(recipe)]
    if question not in conditions:
        problem = f"there is no condition {question!r} here"
        raise RecipeError(ConfigIssue(ARGUMENT, "question", problem, nearest(question, conditions)))


def list_planned_conditions(recipe: Recipe) -> list[str]:
    """Return the names of the conditions that a recipe asks for, as results will have them."""
    try:
        found = list_conditions(recipe, build_data(recipe).spec)
    except OptionError:
        # reported with the other issues of the recipe
        return [*(recipe.evaluate.data_variants or {})]
    return [one.name for one in found if one.kind != "trained"]


def _refuse(problem: str, remedy: str | Message) -> RecipeError:
    return RecipeError(ConfigIssue(ARGUMENT, "hypotheses", problem, remedy))


def record_hypotheses(texts: Sequence[str], folder: Path, runs_ended: int, measure: str) -> None:
    """Write the hypotheses into the output folder; log what they mean, and what changed.

    Args:
        texts: The hypotheses of this command.
        folder: The output folder.
        runs_ended: How many trials and cells have ended.
        measure: The compared metric, such as test/loss.
    """
    texts = [" ".join(text.split()) for text in texts]
    recorded = {one.text: one for one in read_hypotheses(folder)}
    if not texts and not recorded:
        return
    now = format_now()
    for text in texts:
        if text not in recorded:
            recorded[text] = RecordedHypothesis(text=text, written=now, runs_ended=runs_ended)
            if runs_ended:
                log.info("hypothesis added after %d runs had ended: %s", runs_ended, text)
        # listed again: the time at which it was first written stays
        elif recorded[text].withdrawn:
            recorded[text] = replace(recorded[text], withdrawn="")
    for text, one in recorded.items():
        if text not in texts and not one.withdrawn:
            recorded[text] = replace(one, withdrawn=now)
            log.info("hypothesis withdrawn: %s", text)

    write_hypotheses(recorded.values(), folder)
    for text in texts:
        log.info("hypothesis %s", explain_claim(parse_hypothesis(text), measure))
    log.info(
        "%d hypotheses in %s, SHA-256 of their texts: %s",
        len(recorded),
        folder / HYPOTHESES,
        hash_hypotheses(recorded.values()),
    )


def explain_claim(claim: Hypothesis, measure: str) -> str:
    """Explain which variant a claim calls better: of a loss, the one that is below."""
    metric = claim.metric or measure.removeprefix("test/")
    is_above = claim.sign == ">"
    is_better = is_above == (find_direction(metric) == "high")
    return (
        f"{claim.text}: {metric} of {claim.one} is {'above' if is_above else 'below'} that of "
        f"{claim.other}, so {claim.one} is {'better' if is_better else 'worse'}"
    )


def read_hypotheses(folder: Path) -> tuple[RecordedHypothesis, ...]:
    """Return the hypotheses of an output folder; none if it has no file of them.

    Raises:
        DataError: The file holds something else, or was changed by hand.
    """
    path = folder / HYPOTHESES
    if not os.path.lexists(path):
        return ()
    content = read_stored(HypothesesFile, path, "holds no hypotheses")
    if content.sha256 and not is_unchanged(asdict(content)):
        raise DataError(f"{EDITED}; restore it", place=path)
    return content.hypotheses


def write_hypotheses(hypotheses: Iterable[RecordedHypothesis], folder: Path) -> None:
    """Write the hypotheses of an output folder, with their SHA-256."""
    entries = {"hypotheses": [asdict(one) for one in hypotheses]}
    write_json(seal(entries), folder / HYPOTHESES)


def hash_hypotheses(hypotheses: Iterable[RecordedHypothesis]) -> str:
    """Return the SHA-256 of the texts, to be published before a run."""
    return hashlib.sha256("\n".join(one.text for one in hypotheses).encode()).hexdigest()


def judge_hypotheses(comparison: Comparison) -> list[Judgement]:
    """Judge all hypotheses, corrected for their number (Bonferroni), also of those withdrawn."""
    recorded = comparison.hypotheses
    return [_judge(comparison, one, recorded) for one in recorded]


def _judge(
    comparison: Comparison, recorded: RecordedHypothesis, family: Sequence[RecordedHypothesis]
) -> Judgement:
    claim = parse_hypothesis(recorded.text)
    metric, condition = find_metric(comparison, claim), find_condition(comparison, claim)
    if condition is None:
        return Judgement.undecided(recorded, f"not measured at {claim.condition}")
    values = {one.name: collect_values(one, condition, metric) for one in comparison.variants}
    # what a look decided stays, whatever later studies of other variants say of the noise
    stopped = [one for one in comparison.race.stopped if one.claim] if comparison.race else []
    look = next((one.look for one in stopped if one.claim == claim.text), None)
    if look is not None:
        seen = {*comparison.seeds[:look]}
        values = {name: {s: own[s] for s in own if s in seen} for name, own in values.items()}
        family = [one for one in family if not one.runs_ended]
    for name in (claim.one, claim.other):
        if not values.get(name):
            return Judgement.undecided(recorded, f"{name} has no value")

    pair = _name_pair(claim)
    noise = measure_noise({name: own for name, own in values.items() if own})
    width = comparison.bounds if metric == comparison.measure else (float("-inf"), float("inf"))
    # those withdrawn count too: leaving a lost hypothesis out must not narrow the others
    found = compare_named(
        values, [pair], noise, width, family=len(family), level=find_level(comparison)
    )
    difference = found.get(pair)
    if difference is None or difference.estimate.low is None:
        count = difference.estimate.count if difference else 0
        return Judgement.undecided(recorded, explain_no_interval(count, "seeds"))
    estimate = difference.estimate
    is_above = estimate.mean > 0
    verdict: HypothesisVerdict = "undecided"
    if excludes_zero(estimate):
        verdict = "held" if is_above == (claim.sign == ">") else "not held"
    reason = "" if verdict != "undecided" else "the interval of the difference holds 0"
    if look is not None:
        reason = f"smaller than claimed: decided after {look} studies"
    return Judgement(
        hypothesis=recorded,
        verdict=verdict,
        difference=estimate,
        p_value=difference.p_value,
        reason=reason,
    )


def find_metric(comparison: Comparison, claim: Hypothesis) -> str:
    """Return the metric that a claim is about."""
    return f"test/{claim.metric}" if claim.metric else comparison.measure


def find_condition(comparison: Comparison, claim: Hypothesis) -> Condition | None:
    """Return the condition of a claim, None if nothing was measured under it.

    The training size may be named by its number.
    """
    size = comparison.trained.size
    if not claim.condition or (size is not None and claim.condition == format_size(size)):
        return comparison.trained
    known = {one.name: one for one in comparison.conditions}
    return known.get(claim.condition)


def _name_pair(claim: Hypothesis) -> Pair:
    """Return the comparison of a claim, whose margin makes it harder to hold."""
    margin = claim.margin if claim.sign == ">" else -claim.margin
    return Pair(claim.one, claim.other, margin)


def describe_judgements(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the verdicts as plain data, for results.json."""
    return [
        {
            **asdict(one.hypothesis),
            "verdict": one.verdict,
            "difference": one.difference and asdict(one.difference),
            "p_value": one.p_value,
            "reason": one.reason,
        }
        for one in judge_hypotheses(comparison)
    ]


def list_judgement_rows(comparison: Comparison) -> Iterator[list[str]]:
    """Yield hypothesis, verdict, difference with its interval, corrected p-value and notes."""
    for one in judge_hypotheses(comparison):
        p_value = "" if one.p_value is None else f"{one.p_value:.2g}"
        yield [
            one.hypothesis.text,
            one.verdict,
            _format_difference(one.difference),
            "< 0.001" if one.p_value is not None and one.p_value < 0.001 else p_value,
            "; ".join(filter(None, [one.reason, *_list_changes(one.hypothesis)])),
        ]


def _format_difference(found: Estimate | None) -> str:
    if found is None:
        return ""
    ends = (found.mean, found.low, found.high)
    mean, low, high = (format_fixed(end, DECIMALS, sign=True) for end in ends)
    return f"{mean} ({low} to {high})"


def _list_changes(one: RecordedHypothesis) -> Iterator[str]:
    if one.runs_ended:
        yield f"written after {one.runs_ended} runs had ended: no prediction"
    if one.withdrawn:
        yield f"withdrawn {one.withdrawn}"


JUDGEMENT_HEADS = ("hypothesis", "verdict", "difference", "p", "notes")


def build_hypotheses_section(comparison: Comparison) -> ReportSection | None:
    """Return the hypotheses with their verdicts; None if there are none."""
    if not comparison.hypotheses:
        return None
    return ReportSection(
        key="hypotheses",
        title="Hypotheses",
        table=SectionTable(
            heads=JUDGEMENT_HEADS,
            rows=[*list_judgement_rows(comparison)],
            left=("hypothesis", "verdict", "notes"),
        ),
        sentences=[explain_hypotheses(comparison)],
    )


def explain_hypotheses(comparison: Comparison) -> str:
    """Explain what the verdicts mean."""
    recorded = comparison.hypotheses
    where = comparison.trained.describe()
    metrics = {find_metric(comparison, parse_hypothesis(one.text)) for one in recorded}
    loss = " `>` says that a loss is higher, so worse." if "test/loss" in metrics else ""
    return (
        f"Without another condition a hypothesis is about {where}. Differences are to the second "
        "variant, less the margin if there is one; intervals and p-values are corrected for all "
        f"{len(recorded)} hypotheses (Bonferroni), by the noise of all variants. The intervals "
        f"hold together with {100 * find_level(comparison):g} % at one look at the seeds. Held: "
        "the interval lies on the claimed side of "
        f"0; not held: on the other; undecided: it holds 0.{loss} SHA-256 of the texts: "
        f"{hash_hypotheses(recorded)}."
    )
